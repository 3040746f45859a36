#!/usr/bin/env python3
"""Tasks of `lathe bench-kernel` beside ONNX Runtime's models of one node, in turns, weights coming from memory.

  tools/compare_kernels.py build/release/tools/lathe --tasks tools/kernel_tasks.txt [--threads 1] [--rounds 3] [--filter 'conv.*256>']

Float32 convolutions and products with constant weights are compared; ONNX Runtime does the Conv or MatMul alone, Lathe also what
was fused into it. Prints each task's times and ratio, then the geometric mean and the worst. Needs onnx, onnxruntime, numpy.
"""
import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

COLD_BYTES = 64 << 20
AXIS = re.compile(r"(\d+)>(\d+)s(\d+)\[([^\]]*)\](?:every\d+from\d+)?of(\d+)")


def axis_of(text):
    size_in, size_out, stride, taps, _ = AXIS.match(text).groups()
    offsets = [int(tap.split("@")[1]) for tap in taps.split()]
    dilation = offsets[1] - offsets[0] if len(offsets) > 1 else 1
    size_in, size_out, stride = int(size_in), int(size_out), int(stride)
    begin = -offsets[0]
    end = (size_out - 1) * stride + (len(offsets) - 1) * dilation - begin - (size_in - 1)
    return size_in, len(offsets), stride, dilation, begin, max(end, 0)


def model_of(task):
    """The node, the input's shape and the weights' shape; None for what is not compared."""
    gemm = re.match(r"gemm f32 b1 m(\d+) n(\d+) k(\d+) packed", task)
    if gemm:
        m, n, k = map(int, gemm.groups())
        return helper.make_node("MatMul", ["x", "w"], ["y"]), (m, k), (k, n)
    conv = re.match(r"conv \S+ n(\d+) (\d+)>(\d+)/(\d+) (\d+)x(\d+) c\d+(?: bias)? \| y(\S.*?\]\S*) x(\S.*?\]\S*) c\d+( \| y)?", task)
    if not conv or conv.group(9):
        return None
    batch, channels, out, groups, window_y, window_x = map(int, conv.groups()[:6])
    y, x = axis_of(conv.group(7)), axis_of(conv.group(8))
    if (y[1], x[1]) != (window_y, window_x):
        return None
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=groups, kernel_shape=[y[1], x[1]], strides=[y[2], x[2]],
                            dilations=[y[3], x[3]], pads=[y[4], x[4], y[5], x[5]])
    return node, (batch, channels, y[0], x[0]), (out, channels // groups, y[1], x[1])


class OrtTask:
    def __init__(self, node, shape, weights, threads):
        self.x = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        copies = max(1, min(16, COLD_BYTES // (4 * math.prod(weights))))
        self.sessions = []
        for seed in range(copies):
            w = np.random.default_rng(seed).standard_normal(weights).astype(np.float32)
            graph = helper.make_graph([node], "task", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                                      [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                                      [numpy_helper.from_array(w, "w")])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
            self.sessions.append(onnxruntime.InferenceSession(model.SerializeToString(), options,
                                                              providers=["CPUExecutionProvider"]))

    def median_ms(self, seconds):
        times = []
        end = time.perf_counter() + seconds
        while len(times) < 7 or time.perf_counter() < end:
            session = self.sessions[len(times) % len(self.sessions)]
            begin = time.perf_counter()
            session.run(None, self.x)
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)


def lathe_times(lathe, tasks, threads, seconds):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file, tempfile.NamedTemporaryFile(suffix=".json") as report:
        file.write("\n".join(tasks) + "\n")
        file.flush()
        subprocess.run([lathe, "bench-kernel", "--tasks", file.name, "--threads", str(threads), "--no-cache",
                        "--duration", f"{seconds * 1000:.0f}ms", "--json", report.name], check=True,
                       stdout=subprocess.DEVNULL)
        return {row["task"]: row for row in json.load(open(report.name))["tasks"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lathe")
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each task and round")
    parser.add_argument("--filter", default="")
    options = parser.parse_args()
    lines = [line.strip() for line in open(options.tasks) if line.strip() and line[0] != "#"]
    tasks = {line: model_of(line) for line in lines if re.search(options.filter, line)}
    tasks = {line: model for line, model in tasks.items() if model}
    ours, theirs, of_peak = {t: [] for t in tasks}, {t: [] for t in tasks}, {}
    for _ in range(options.rounds):
        for task, row in lathe_times(options.lathe, list(tasks), options.threads, options.seconds).items():
            ours[task].append(row["median_ms"])
            of_peak[task] = row["of_peak"]
        for task, model in tasks.items():
            theirs[task].append(OrtTask(*model, options.threads).median_ms(options.seconds))
    ratios = {}
    print(f"{'lathe ms':>9} {'ort ms':>9} {'ratio':>6} {'peak %':>6}  task")
    for task in tasks:
        if not ours[task]:
            continue
        a, b = statistics.median(ours[task]), statistics.median(theirs[task])
        ratios[task] = b / a
        print(f"{a:9.4f} {b:9.4f} {b / a:6.2f} {of_peak[task]:6.0f}  {task[:120]}")
    if not ratios:
        sys.exit("no task to compare")
    mean = math.exp(statistics.fmean(math.log(r) for r in ratios.values()))
    worst = min(ratios, key=ratios.get)
    print(f"geometric mean {mean:.3f} over {len(ratios)} tasks; worst {ratios[worst]:.2f}: {worst[:100]}")


if __name__ == "__main__":
    main()
