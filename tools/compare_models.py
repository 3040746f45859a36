#!/usr/bin/env python3
"""Compares Lathe's outputs with ONNX Runtime's on a set of models, also at other shapes than the models were made for.

    tools/compare_models.py --lathe build/release/tools/lathe --models FOLDER [--only NAME,...] [--threads 1,2]

FOLDER holds models.json: a list of {"name", "file", "inputs": {name: {"dtype", "shape"}}}. Each model runs at its
listed shapes, then with a batch of 3, and with another picture size or sequence length; fixed extents are opened for that in a
copy of the model. A change that ONNX Runtime refuses is one that the model does not allow, and is reported as such.
The error is the largest difference over the largest value of ONNX Runtime's output.
Needs the Python packages onnx, onnxruntime and numpy. LATHE_ISA in the environment caps the instruction set as usual.
The tolerance is 1e-4 or, where it is larger, SENSITIVITY times what a rounding of the inputs does to ONNX Runtime's
outputs: no engine is nearer to another on an input that a model amplifies so. For quantized models it is 2e-2 or, where it is larger, NOISE times the distance of ONNX Runtime's
outputs with its optimizer on from those with it off: a model that rounds activations in every layer can turn a last
bit of one layer into several percent of its outputs, and no two ways to sum agree better than that.
Exit status: 0 when all are within their tolerance, else 1.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOLERANCE, QUANTIZED_TOLERANCE, NOISE, SENSITIVITY = 1e-4, 2e-2, 1.25, 10


def variants(inputs):
    """Other shapes to try: (what changed, {name: shape}), the listed ones first."""
    shapes = {name: list(spec["shape"]) for name, spec in inputs.items()}
    yield "listed", shapes
    changed = dict(shapes)
    for name, shape in shapes.items():
        if len(shape) == 3:  # a recurrent state is [directions, batch, width]
            changed[name] = [shape[0], 3 * shape[1], shape[2]]
        elif shape:
            changed[name] = [3 * shape[0], *shape[1:]]
    yield "batch 3", changed
    if any(len(shape) == 4 for shape in shapes.values()):
        wider = {name: [*shape[:3], shape[3] + 64] for name, shape in shapes.items() if len(shape) == 4}
        yield "picture", {**shapes, **wider}
    elif all(spec["dtype"] == "int64" for spec in inputs.values()):
        for length in (1, 57):
            yield f"length {length}", {name: [shape[0], length] for name, shape in shapes.items()}


def picture_of_text(shape, random):
    """A text detector answers noise with values near zero, where every relative error is large."""
    head, pixels = (ROOT / "examples/text.pgm").read_bytes().split(b"\n255\n", 1)
    width, height = (int(word) for word in head.split()[-2:])
    page = np.frombuffer(pixels, np.uint8).reshape(height, width)
    rows, columns = -(-shape[2] // height), -(-shape[3] // width)
    tiled = np.tile(page, (rows, columns))[: shape[2], : shape[3]].astype(np.float32) / 127.5 - 1
    return tiled + 0.1 * random.standard_normal(shape, dtype=np.float32)


def random_input(name, spec, shape, random):
    if spec["dtype"] != "int64":
        is_picture = len(shape) == 4 and shape[1] == 3
        return picture_of_text(shape, random) if is_picture else random.standard_normal(shape, dtype=np.float32)
    if "mask" in name:
        return np.ones(shape, np.int64)
    if "type" in name:
        return np.zeros(shape, np.int64)
    return np.array(16000) if shape == [] else random.integers(5, 20000, shape)


def open_extents(path, folder):
    """A copy of the model whose inputs and outputs may have any extents."""
    model = onnx.load(path)
    for value in [*model.graph.input, *model.graph.output]:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    del model.graph.value_info[:]
    copy = folder / "open.onnx"
    onnx.save(model, copy)
    return copy


def runtime_outputs(path, feeds, optimize=True):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def lathe_outputs(lathe, path, feeds, threads, folder, count, more=()):
    command = [lathe, "run", str(path), "--threads", str(threads), "--output", str(folder / "out"), *more]
    for i, (name, value) in enumerate(feeds.items()):
        np.save(folder / f"{i}.npy", value)
        command += ["--input", f"{name}={folder / f'{i}.npy'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        return None, f"exit {done.returncode}: {done.stderr.strip()[-200:]}"
    return [np.load(folder / "out" / f"{i}.npy") for i in range(count)], ""


def largest_error(expected, got):
    worst = 0.0
    for want, have in zip(expected, got):
        if want.shape != have.shape:
            return float("inf")
        if want.size:
            scale = max(float(np.abs(want).max()), 1e-30)
            worst = max(worst, float(np.abs(have.astype(np.float64) - want).max()) / scale)
    return worst


def change_by_rounding(path, feeds, expected, random):
    """The largest error when the last bit of every float32 input is up or down: of four draws."""
    worst = 0.0
    for _ in range(4):
        moved = {
            name: np.nextafter(value, np.where(random.random(value.shape) < 0.5, np.float32(-np.inf), np.float32(np.inf)))
            if value.dtype == np.float32
            else value
            for name, value in feeds.items()
        }
        worst = max(worst, largest_error(expected, runtime_outputs(path, moved)))
    return worst


def check(entry, models, lathe, threads):
    """Yields (variant, threads, error or None, tolerance, message)."""
    random = np.random.default_rng(1)
    for what, shapes in variants(entry["inputs"]):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            path = models / entry["file"]
            path = path if what == "listed" else open_extents(path, folder)
            feeds = {n: random_input(n, spec, shapes[n], random) for n, spec in entry["inputs"].items()}
            try:
                expected = runtime_outputs(path, feeds)
            except Exception as refusal:  # the package has no common class for these
                yield what, 0, None, 0, f"ONNX Runtime refuses: {str(refusal).splitlines()[0][:90]}"
                continue
            tolerance = TOLERANCE
            if "int8" in entry["name"]:
                noise = largest_error(expected, runtime_outputs(path, feeds, optimize=False))
                tolerance = max(QUANTIZED_TOLERANCE, NOISE * noise)
            for count in threads:
                got, message = lathe_outputs(lathe, path, feeds, count, folder, len(expected))
                error = largest_error(expected, got) if got else float("inf")
                if got and error > tolerance and "int8" not in entry["name"]:
                    tolerance = max(tolerance, SENSITIVITY * change_by_rounding(path, feeds, expected, np.random.default_rng(2)))
                yield what, count, error, tolerance, message


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--threads", default="1,2")
    options = parser.parse_args()
    listed = json.loads((options.models / "models.json").read_text())
    entries = listed["models"] if isinstance(listed, dict) else listed
    only = [name for name in options.only.split(",") if name]
    threads = [int(count) for count in options.threads.split(",")]
    bad = good = 0
    for entry in entries:
        if only and entry["name"] not in only:
            continue
        for what, count, error, tolerance, message in check(entry, options.models, options.lathe, threads):
            if error is None:
                print(f"{entry['name']:16} {what:10} not allowed by the model ({message})", flush=True)
                continue
            verdict = "ok" if error <= tolerance else "BAD"
            good, bad = good + (verdict == "ok"), bad + (verdict != "ok")
            print(f"{entry['name']:16} {what:10} {count} threads  error {error:.1e} of {tolerance:.1e}  {verdict} {message}", flush=True)
    print(f"{good} of {good + bad} within tolerance")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
