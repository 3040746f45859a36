#!/usr/bin/env python3
"""Tasks of `lathe bench-kernel` beside oneDNN's primitives and ONNX Runtime's models of one node, in turns, weights coming
from memory.

  tools/compare_kernels.py build/release/tools/lathe --tasks tools/kernel_tasks.txt [--onednn build/release/tools/onednn/onednn_layers]
    [--only resnet50,vgg19] [--threads 1] [--rounds 3] [--filter 'conv.*256>'] [--no-ort]

Convolutions and products with constant weights are compared, of float32 and of bytes. ONNX Runtime does the Conv or MatMul alone
(QLinearConv, QLinearMatMul), oneDNN, in layouts of its choice, also bias, activation and residual, Lathe all that was fused into it:
of bytes also the roundings in between, zero points and float32 outputs, which the others do without. Left out are pictures of bytes
with few channels, whose packing Lathe does in a step of its own. Prints each task's times and the rounds' ratio of the faster other to
Lathe's, then the geometric mean and how many are slower. Needs onnx, onnxruntime, numpy; onednn_layers is built by
`make compare-kernels` where oneDNN is installed.

For AVX2: LATHE_ISA=avx2 ONEDNN_MAX_CPU_ISA=AVX2 in the environment, and tasks that tools/list_tasks.py made with it. ONNX Runtime
cannot be held to it: --no-ort leaves it out.
"""
import argparse
import functools
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

COLD_BYTES = 64 << 20
STREAMED_BYTES = 1 << 20  # weights of so many bytes: ONNX Runtime's are driven out of all caches before each run
NOISE = 1.03  # a ratio may miss 1 by so much
AXIS = re.compile(r"(\d+)>(\d+)s(\d+)\[([^\]]*)\](?:every\d+from\d+)?of(\d+)")
CONV = re.compile(r"conv \S+ n(\d+) (\d+)>(\d+)/(\d+) (\d+)x(\d+) c\d+(?: bias)? \| y(\S.*?\]\S*) x(\S.*?\]\S*) c\d+( \| y)?")
GEMM = re.compile(r"gemm f32 b1 m(\d+) n(\d+) k(\d+) packed")
CONV_INT8 = re.compile(r"conv_int8 \S+ \S+ k(\d+) (\w+)\S* n(\d+) \d+>(\d+)/1 \d+x\d+ c\d+ \| y(\S.*?\]\S*) x(\S.*?\]\S*) c\d+ \| ")
GEMM_INT8 = re.compile(r"gemm_int8 \S+ b1 m(\d+) n(\d+) k(\d+) ")
NODE_INT8 = re.compile(r"node lathe\.QuantizedConv@1\[(.*?)\]\(uint8\[(\d+),(\d+),(\d+),(\d+)\]\S*, const int8\[(\d+),\d+,(\d+),(\d+)\]")
FEWEST_CHANNELS = 16  # of bytes


def axis_of(text):
    """Extent, taps, stride, dilation, padding before and behind."""
    size_in, size_out, stride, taps, _ = AXIS.match(text).groups()
    offsets = [int(tap.split("@")[1]) for tap in taps.split()]
    dilation = offsets[1] - offsets[0] if len(offsets) > 1 else 1
    size_in, size_out, stride = int(size_in), int(size_out), int(stride)
    begin = -offsets[0]
    end = (size_out - 1) * stride + (len(offsets) - 1) * dilation - begin - (size_in - 1)
    return size_in, len(offsets), stride, dilation, begin, max(end, 0)


def fused_words(expression):
    """What onednn_layers shall fuse: the activation, and a sum before or behind it. Other arithmetic it does without."""
    known = {"* sigmoid(": "swish", "sigmoid(": "logistic", "erf(": "gelu", "min(max(x0 + 3": "hardswish",
             "min(max(x0, 0), 6)": "clip", "max(": "relu"}
    words = [next((word for part, word in known.items() if part in expression), "")]
    if expression.endswith(":f"):
        words.insert(0 if "(x0 + x1" in expression else 1, "sum")
    return " ".join(filter(None, words))


def conv_attributes(groups, y, x):
    """Of ONNX's Conv; y and x as of axis_of()."""
    return {"group": groups, "kernel_shape": [y[1], x[1]], "strides": [y[2], x[2]], "dilations": [y[3], x[3]],
            "pads": [y[4], x[4], y[5], x[5]]}


def conv_words(batch, channels, out, groups, y, x):
    """BATCH IN OUT GROUPS H W KH KW STRIDE_H STRIDE_W TOP LEFT BOTTOM RIGHT DILATION_H DILATION_W"""
    pairs = [value for i in range(6) for value in (y[i], x[i])]
    return " ".join(map(str, [batch, channels, out, groups, *pairs[:6], *pairs[8:], *pairs[6:8]]))


@functools.cache
def other_bytes():
    """Twice what the last cache holds: reading them drives out what was there, where 16 copies of the weights may all fit."""
    levels = pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return np.ones(max([COLD_BYTES, *(2 * int(level.read_text().removesuffix("K\n")) << 10 for level in levels)]) // 8)


class Layer:
    """A convolution or product in the words of the other engines."""

    def __init__(self, node, x_shape, w_shape, onednn, columns=0):
        """`columns`: output channels of a layer of bytes, each with a scale of its own; 0: float32."""
        self.node, self.x_shape, self.w_shape, self.onednn, self.columns = node, x_shape, w_shape, onednn, columns

    @staticmethod
    def of(task):
        """None for what is not compared."""
        gemm = GEMM.match(task)
        if gemm:
            m, n, k = map(int, gemm.groups())
            onednn = f"gemm {m} {n} {k} {fused_words(task[gemm.end():])}"
            return Layer(helper.make_node("MatMul", ["x", "w"], ["y"]), (m, k), (k, n), onednn)
        conv = CONV.match(task)
        if not conv or conv.group(9):
            return Layer.of_bytes(task)
        batch, channels, out, groups, window_y, window_x = map(int, conv.groups()[:6])
        y, x = axis_of(conv.group(7)), axis_of(conv.group(8))
        if (y[1], x[1]) != (window_y, window_x):
            return None
        node = helper.make_node("Conv", ["x", "w"], ["y"], **conv_attributes(groups, y, x))
        words = f"conv {conv_words(batch, channels, out, groups, y, x)} {fused_words(task.rsplit(' | ', 1)[1])}"
        return Layer(node, (batch, channels, y[0], x[0]), (out, channels // groups, y[1], x[1]), words)

    @staticmethod
    def of_bytes(task):
        gemm = GEMM_INT8.match(task)
        if gemm:
            m, n, k = map(int, gemm.groups())
            words = f"gemm_int8 {m} {n} {k} {'u8' if '-> uint8]' in task else 'f32'}"
            words += (" gelu" if "erf(" in task else "") + (" sum" if "x3" in task else "")
            node = helper.make_node("QLinearMatMul", ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"], ["y"])
            return Layer(node, (m, k), (k, n), words, n)
        conv, plain = CONV_INT8.match(task), NODE_INT8.match(task)
        if conv:
            channels, dtype, batch, out = int(conv.group(1)), conv.group(2), int(conv.group(3)), int(conv.group(4))
            y, x = axis_of(conv.group(5)), axis_of(conv.group(6))
            fused = ("u8" if dtype == "uint8" else "f32") + (" sum" if task.endswith("f") else "")
        elif plain:
            batch, channels, height, width, out, *window = map(int, plain.groups()[1:])
            given = {name: list(map(int, values.split(","))) for name, values in re.findall(r"(\w+)=\[([\d, ]+)\]", plain.group(1))}
            pads, strides, dilations = given.get("pads", [0] * 4), given.get("strides", [1, 1]), given.get("dilations", [1, 1])
            y, x = ((size, window[i], strides[i], dilations[i], pads[i], pads[i + 2]) for i, size in enumerate((height, width)))
            fused = "u8"
        if not conv and not plain or channels < FEWEST_CHANNELS:
            return None
        node = helper.make_node("QLinearConv", ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"], ["y"],
                                **conv_attributes(1, y, x))
        words = f"conv_int8 {conv_words(batch, channels, out, 1, y, x)} {fused}"
        return Layer(node, (batch, channels, y[0], x[0]), (out, channels, y[1], x[1]), words, out)

    def ort_constants(self, seed):
        random = np.random.default_rng(seed)
        if not self.columns:
            return {"w": random.standard_normal(self.w_shape).astype(np.float32)}
        return {"x_scale": np.float32(0.02), "x_zero": np.uint8(0), "y_scale": np.float32(0.1), "y_zero": np.uint8(0),
                "w": random.integers(-127, 128, self.w_shape, np.int8), "w_scale": np.full(self.columns, 0.01, np.float32),
                "w_zero": np.zeros(self.columns, np.int8)}

    def ort_ms(self, threads, seconds):
        random = np.random.default_rng(0)
        x = random.integers(0, 256, self.x_shape, np.uint8) if self.columns else random.standard_normal(self.x_shape).astype(np.float32)
        kind = TensorProto.UINT8 if self.columns else TensorProto.FLOAT
        x = {"x": x}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        streams = math.prod(self.w_shape) * (1 if self.columns else 4) >= STREAMED_BYTES
        copies = 1 if streams else 16  # smaller ones take turns
        sessions = []
        for seed in range(copies):
            constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in self.ort_constants(seed).items()]
            graph = helper.make_graph([self.node], "task", [helper.make_tensor_value_info("x", kind, self.x_shape)],
                                      [helper.make_tensor_value_info("y", kind, None)], constants)
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
            sessions.append(onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]))
        times = []
        while len(times) < 7 or sum(times) < seconds * 1e3:
            session = sessions[len(times) % len(sessions)]
            if streams:
                other_bytes().sum()
                x["x"].sum()  # a model's step before has just written it
            begin = time.perf_counter()
            session.run(None, x)
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)


class Server:
    """A program that answers each line with a line, so that engines can take turns at every task."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **(environment or {})})

    def answer(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"'{self.process.args[0]}' ended at: {line}")
        return answer


def rows_of(task, layer, lathe, onednn, options):
    """Lathe's, ONNX Runtime's and oneDNN's ms and Lathe's percentage of the peak, for each round; none: of another instruction set."""
    rows = []
    for _ in range(options.rounds):
        answer = json.loads(lathe.answer(task))
        if "unsupported" in answer:
            return []
        if "error" in answer:
            sys.exit(f"{answer['error']}: {task}")
        ours = answer["timings"][0]
        theirs = float(onednn.answer(layer.onednn)) if onednn else math.inf
        ort = math.inf if options.no_ort else layer.ort_ms(options.threads, options.seconds)
        rows.append((ours["median_ms"], ort, theirs, ours["of_peak"]))
    return rows


def chosen_tasks(options):
    """Task: layer, of the models and the filter asked for."""
    only, model, chosen = [name for name in options.only.split(",") if name], "", {}
    for line in open(options.tasks):
        line = line.strip()
        if line.startswith("#"):
            model = line[1:].strip().removesuffix(".onnx")
        elif line and (not only or model in only) and re.search(options.filter, line):
            layer = Layer.of(line)
            if layer:
                chosen[line] = layer
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lathe")
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--onednn", default="", help="the program onednn_layers; without it ONNX Runtime alone")
    parser.add_argument("--only", default="", help="models, separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each task and round")
    parser.add_argument("--filter", default="")
    parser.add_argument("--no-ort", action="store_true")
    options = parser.parse_args()
    tasks = chosen_tasks(options)
    if not tasks:
        sys.exit("no task to compare")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.threads])  # of all engines: a CPU's neighbour may be busy
    lathe = Server([options.lathe, "bench-kernel", "--stdin", "--threads", str(options.threads), "--no-cache",
                    "--duration", f"{options.seconds * 1000:.0f}ms"])
    onednn = Server([options.onednn, str(options.seconds)], {"OMP_NUM_THREADS": str(options.threads)}) if options.onednn else None
    ratios = {}
    print(f"{'lathe ms':>9} {'ort ms':>9} {'onednn ms':>9} {'ratio':>6} {'peak %':>6}  task")
    for task, layer in tasks.items():
        rows = rows_of(task, layer, lathe, onednn, options)
        if not rows:
            continue  # of another instruction set
        ours, ort, theirs, of_peak = map(statistics.median, zip(*rows))
        # Of each round: whoever disturbs stays longer than that.
        ratios[task] = statistics.median(min(row[1], row[2]) / row[0] for row in rows)
        print(f"{ours:9.4f} {ort:9.4f} {theirs:9.4f} {ratios[task]:6.2f} {of_peak:6.0f}  {task[:110]}", flush=True)
    if not ratios:
        sys.exit("no task for this machine")
    mean = math.exp(statistics.fmean(math.log(r) for r in ratios.values()))
    worst = min(ratios, key=ratios.get)
    slower = sum(r * NOISE < 1 for r in ratios.values())
    print(f"geometric mean {mean:.3f} over {len(ratios)} tasks; {slower} slower; worst {ratios[worst]:.2f}: {worst[:90]}")


if __name__ == "__main__":
    main()
