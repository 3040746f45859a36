#!/usr/bin/env python3
"""The error of Lathe at each accuracy level, and of ONNX Runtime, against float64 arithmetic.

    tools/compare_accuracy.py --lathe build/release/tools/lathe --models FOLDER [--only NAME,...] [--threads 1]

FOLDER holds models.json as for tools/compare_models.py. A copy of each float32 model with float64 constants runs in onnx's reference
evaluator, which calls numpy. Errors are the largest and the mean absolute difference over the largest absolute value of the
float64 output, the worst output of each model counting. The bounds: `normal` (the default level) below the larger of 1e-5
and 10 times ONNX Runtime's error, `strict` below 2 times ONNX Runtime's error (or 2 of float32's roundings, 2.4e-7).
Needs the Python packages onnx, onnxruntime and numpy. Exit status: 0 when all bounds hold, else 1.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator, op_run

from compare_models import lathe_outputs, random_input, runtime_outputs

LEVELS = ("strict", "normal", "fast")
ROUNDINGS = 2 * 2.0**-23


def widen_tensor(tensor):
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def widen_type(value):
    for kind in (value.type.tensor_type, value.type.optional_type.elem_type.tensor_type):
        if kind.elem_type == TensorProto.FLOAT:
            kind.elem_type = TensorProto.DOUBLE


def widen_graph(graph):
    """Every float32 in a graph becomes float64: constants, casts, and the graphs inside nodes."""
    for tensor in graph.initializer:
        widen_tensor(tensor)
    del graph.value_info[:]
    for value in [*graph.input, *graph.output]:
        widen_type(value)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                widen_tensor(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                widen_graph(attribute.g)
            elif attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
                array = np.array(values, np.float64)
                tensor = numpy_helper.from_array(array[0] if attribute.name == "value_float" else array)
                attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))


class Conv(op_run.OpRun):
    """Convolution as one matrix product for each tap: the evaluator's own loops over pixels take hours."""

    op_domain = ""

    def _run(self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, pads=None, strides=None):
        rank = x.ndim - 2
        taps, strides, dilations = w.shape[2:], strides or [1] * rank, dilations or [1] * rank
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            total = [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, s, k, d in zip(x.shape[2:], strides, taps, dilations)]
            small, large = [t // 2 for t in total], [t - t // 2 for t in total]
            pads = small + large if auto_pad == "SAME_UPPER" else large + small
        pads = pads or [0] * 2 * rank
        x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
        size = [(n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(x.shape[2:], taps, dilations, strides)]
        batch, groups, out = x.shape[0], group or 1, w.shape[0]
        y = np.zeros((batch, groups, out // groups, int(np.prod(size))), x.dtype)
        w = w.reshape(groups, out // groups, w.shape[1], *taps)
        for tap in np.ndindex(*taps):
            window = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, size, strides))
            pixels = x[(slice(None), slice(None), *window)].reshape(batch, groups, -1, y.shape[-1])
            y += w[(slice(None),) * 3 + tap] @ pixels
        y = y.reshape(batch, out, *size)
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


class BatchNormalization(op_run.OpRun):
    """As at inference: the evaluator takes the models of the first operator sets to be in training."""

    op_domain = ""

    def _run(self, x, scale, bias, mean, variance, epsilon=1e-5, **_):
        scale, bias, mean, variance = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, bias, mean, variance))
        return ((x - mean) / np.sqrt(variance + epsilon) * scale + bias,)


class Dropout(op_run.OpRun):
    op_domain = ""

    def _run(self, x, *_, **__):
        return (x,)


class FlatSoftmax(op_run.OpRun):
    """As before operator set 13: over all axes from the given one on."""

    op_domain = ""
    op_schema = onnx.defs.get_schema("Softmax", 11)

    def _run(self, x, axis=1):
        rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
        powers = np.exp(rows - rows.max(axis=1, keepdims=True))
        return ((powers / powers.sum(axis=1, keepdims=True)).reshape(x.shape),)


FlatSoftmax.__name__ = "Softmax"


def exact_outputs(path, feeds):
    model = onnx.load(path)
    operators = [Conv, BatchNormalization, Dropout]
    if all(used.version < 13 for used in model.opset_import if used.domain == ""):
        operators.append(FlatSoftmax)
    widen_graph(model.graph)
    wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}
    return ReferenceEvaluator(model, new_ops=operators).run(None, wide)


def errors(exact, got):
    """The largest and the mean error over the largest value, of the worst output."""
    largest = mean = 0.0
    for want, have in zip(exact, got):
        if want.size:
            off, scale = np.abs(have.astype(np.float64) - want), max(float(np.abs(want).max()), 1e-30)
            largest, mean = max(largest, float(off.max()) / scale), max(mean, float(off.mean()) / scale)
    return largest, mean


def row(entry, models, lathe, threads):
    random = np.random.default_rng(1)
    path = models / entry["file"]
    feeds = {n: random_input(n, spec, spec["shape"], random) for n, spec in entry["inputs"].items()}
    exact = exact_outputs(path, feeds)
    found = {"ort": errors(exact, runtime_outputs(path, feeds))}
    for level in LEVELS:
        with tempfile.TemporaryDirectory() as name:
            got, message = lathe_outputs(lathe, path, feeds, threads, pathlib.Path(name), len(exact), ["--accuracy", level])
        if got is None:
            sys.exit(f"{entry['name']}, {level}: {message}")
        found[level] = errors(exact, got)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    listed = json.loads((options.models / "models.json").read_text())
    entries = listed["models"] if isinstance(listed, dict) else listed
    only = [name for name in options.only.split(",") if name]
    bad = []
    print("largest error (mean error), relative to the largest output")
    print("| model | ONNX Runtime | strict | normal | fast |\n| --- | --- | --- | --- | --- |")
    for entry in entries:
        if "int8" in entry["name"] or (only and entry["name"] not in only):
            continue
        found = row(entry, options.models, options.lathe, options.threads)
        cells = [f"{found[key][0]:.1e} ({found[key][1]:.1e})" for key in ("ort", *LEVELS)]
        print(f"| {entry['name']} | {' | '.join(cells)} |", flush=True)
        reference = found["ort"][0]
        bounds = {"strict": max(2 * reference, ROUNDINGS), "normal": max(1e-5, 10 * reference)}
        bad += [f"{entry['name']} at {level}: {found[level][0]:.1e}, allowed {bound:.1e}"
                for level, bound in bounds.items() if not found[level][0] <= bound]
    print("\n".join(bad) if bad else "all within the bounds of their level")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
