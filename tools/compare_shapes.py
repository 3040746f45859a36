#!/usr/bin/env python3
"""Times models whose inputs have another shape in each run, Lathe and ONNX Runtime in turns.

    tools/export_models.py --open --out FOLDER
    tools/compare_shapes.py --lathe build/release/tools/lathe --models FOLDER [--only NAME,...] [--threads 1,2]

FOLDER holds models.json: a list of {"name", "file", "dims", "shuffle"}: `dims` are ranges as `lathe bench --dim` takes
them, and `shuffle` says whether they come in a mixed order, as sentences do, or in theirs, as a growing cache does. Both
engines run all shapes in the same order, in a new process or session each round; the time of a shape is the least of
the rounds. "new" is the mean over the second half of the shapes when each is there for the first time, and in brackets
the median of the shapes' ratios: a shape that needs weights in another form has them packed, once, and counts many
times in the mean. "again" is the mean of later runs and its ratio. Needs the Python packages onnx, onnxruntime and numpy.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime

AGAIN = 2  # more runs of each shape


def run_lathe(lathe, path, entry, threads):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "shapes.json"
        command = [lathe, "bench", str(path), "--no-cache", "--threads", str(threads), "--iterations", str(AGAIN), "--json", str(report)]
        for dim in entry["dims"]:
            command += ["--dim", dim]
        if entry["shuffle"]:
            command.append("--shuffle")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(report.read_text())["shapes"]


def made_up(inputs, dims, random):
    """As `lathe bench` makes them: floats in [-1, 1), integers 0 or 1."""
    feeds = {}
    for value in inputs:
        kind = value.type.tensor_type
        shape = [dims.get(dim.dim_param, 1) if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        is_float = np.issubdtype(dtype, np.floating)
        feeds[value.name] = (random.random(shape, np.float32) * 2 - 1 if is_float else random.integers(0, 2, shape)).astype(dtype)
    return feeds


def run_onnxruntime(path, inputs, order, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)

    def run(dims):
        feeds = made_up(inputs, dims, random)
        begin = time.perf_counter()
        session.run(None, feeds)
        return (time.perf_counter() - begin) * 1e3

    new = [run(dims) for dims in order]
    rounds = [[run(dims) for dims in order] for _ in range(AGAIN)]
    return [{"new_ms": first, "again_ms": min(later)} for first, later in zip(new, zip(*rounds))]


def dims_of(shape):
    return {name: int(extent) for name, _, extent in (dim.rpartition("=") for dim in shape["dims"])}


def least(rounds, key):
    """By shape. Of new ones the second half."""
    times = np.min([[shape[key] for shape in shapes] for shapes in rounds], axis=0)
    return times[len(times) // 2:] if key == "new_ms" else times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    ratios = {"new_ms": [], "again_ms": []}
    print(f"{'model':22} threads shapes    new: ms  ONNX Runtime    again: ms  ONNX Runtime")
    for entry in json.loads((options.models / "models.json").read_text()):
        if "dims" not in entry or (only and entry["name"] not in only):
            continue
        path = options.models / entry["file"]
        graph = onnx.load(path, load_external_data=False).graph
        weights = {tensor.name for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in weights]
        for threads in (int(count) for count in options.threads.split(",")):
            ours, theirs = [], []
            for _ in range(options.rounds):
                ours.append(run_lathe(options.lathe, path, entry, threads))
                theirs.append(run_onnxruntime(path, inputs, [dims_of(shape) for shape in ours[-1]], threads))
            line = f"{entry['name']:22} {threads:7} {len(ours[0]):6}"
            for key in ratios:
                mine, other = least(ours, key), least(theirs, key)
                ratio = np.median(other / mine) if key == "new_ms" else other.mean() / mine.mean()
                ratios[key].append(ratio)
                line += f"  {mine.mean():9.3f} {other.mean():9.3f} ({ratio:5.2f})"
            print(line, flush=True)
    if ratios["new_ms"]:
        new, again = (float(np.exp(np.mean(np.log(all_of)))) for all_of in ratios.values())
        print(f"ONNX Runtime's time / Lathe's, geometric mean of {len(ratios['new_ms'])}: new {new:.3f}, again {again:.3f}")


if __name__ == "__main__":
    sys.exit(main())
