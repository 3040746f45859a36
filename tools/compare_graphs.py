#!/usr/bin/env python3
"""What graph passes make of a set of models, as a Markdown table, beside what other engines make of them.

    tools/compare_graphs.py --lathe build/release/tools/lathe --models FOLDER [--only NAME,...] [--rounds 5]

FOLDER holds models.json, as tools/compare_models.py reads it. Columns: nodes that do anything (a node may take several
steps), megabytes that they move, reorders and Transposes among them, without passes and with all; the time of a run without
and with (the median of rounds of both, in turn, on one thread); nodes in the optimized graphs of ONNX Runtime and OpenVINO,
where these packages are there (constants, inputs, outputs and what constants alone decide do not count), and in parentheses
their reorders and Transposes; time in passes beside ONNX Runtime's whole creation of a session.
"""
import argparse
import collections
import json
import pathlib
import re
import statistics
import subprocess
import tempfile
import time


def shape_options(entry):
    shapes = ((name, spec["shape"]) for name, spec in entry["inputs"].items())
    return [word for name, shape in shapes if shape for word in ("--shape", f"{name}:" + "x".join(map(str, shape)))]


def inspect(lathe, path, shapes, level):
    """Nodes by operator, megabytes moved, milliseconds in passes."""
    command = [lathe, "inspect", path, "--no-cache", "-t", "1", "--optimization-level", str(level), *shapes]
    text = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    steps = re.findall(r"^  (\w+)\S* +(\S.*?) +x\d+ ", text, re.MULTILINE)
    nodes = collections.Counter(kind for kind, _ in dict.fromkeys(steps))
    moved = re.findall(r"^\d+ steps move ([\d.]+) MB$", text, re.MULTILINE)
    passes = sum(map(float, re.findall(r"^  all of them: ([\d.]+) ms$", text, re.MULTILINE)))
    return nodes, sum(nodes.values()), float(moved[0]), passes


def run_ms(lathe, path, shapes, level):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "bench.json"
        command = [lathe, "bench", path, "--no-cache", "-t", "1", "--duration", "0.5s", "--json", out, *shapes]
        done = subprocess.run([*command, "--optimization-level", str(level)], capture_output=True, timeout=300)
        # A model that takes no made-up elements has no time.
        return json.loads(out.read_text())["median_ms"] if done.returncode == 0 else float("nan")


def runtime_graph(path):
    """ONNX Runtime: nodes, reorders and Transposes, milliseconds of creating a session; None without the package."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return None
    times = []
    for _ in range(3):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        begin = time.perf_counter()
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        times.append(1e3 * (time.perf_counter() - begin))
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        graph = onnx.load(f"{folder}/optimized.onnx", load_external_data=False).graph
        nodes = collections.Counter(node.op_type for node in graph.node)
    reorders = nodes["ReorderInput"] + nodes["ReorderOutput"]
    return sum(nodes.values()), reorders, nodes["Transpose"], statistics.median(times)


def openvino_nodes(path, entry):
    """OpenVINO: nodes, reorders, Transposes; None without the package."""
    try:
        import openvino
    except ImportError:
        return None
    model = openvino.Core().read_model(path)
    model.reshape({name: spec["shape"] for name, spec in entry["inputs"].items()})
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    nodes = collections.Counter()
    for op in openvino.Core().compile_model(model, "CPU", options).get_runtime_model().get_ops():
        if not (of_constants(op) or layer_type(op) in ("Input", "Output", "Parameter", "Result")):
            nodes[layer_type(op)] += 1
    return sum(nodes.values()), nodes["Reorder"], nodes["Transpose"]


def layer_type(op):
    kind = op.get_rt_info()["layerType"]
    return str(kind.value if hasattr(kind, "value") else kind)


def of_constants(op):
    """Constants, and what is made of nothing else: computed once."""
    if layer_type(op) in ("Const", "Constant"):
        return True
    inputs = [value.get_node() for value in op.input_values()]
    return bool(inputs) and all(of_constants(each) for each in inputs)


def row(entry, models, lathe, rounds):
    path, shapes = str(models / entry["file"]), shape_options(entry)
    before, after = inspect(lathe, path, shapes, 0), inspect(lathe, path, shapes, 99)
    times = [(run_ms(lathe, path, shapes, 0), run_ms(lathe, path, shapes, 99)) for _ in range(rounds)]
    plain, optimized = (statistics.median(column) for column in zip(*times)) if times else (0, 0)
    try:
        runtime = runtime_graph(path)
    except Exception as error:  # the package has no common class for these
        runtime = None
        print(f"ONNX Runtime, {entry['name']}: {str(error)[:100]}")
    try:
        vino = openvino_nodes(path, entry)
    except Exception as error:
        vino = None
        print(f"OpenVINO, {entry['name']}: {str(error)[:100]}")
    cells = [entry["name"], f"{before[1]} → {after[1]}", f"{before[2]:.1f} → {after[2]:.1f}",
             f"{after[0]['Reorder']}, {after[0]['Transpose']}", f"{plain:.2f} → {optimized:.2f}",
             *(f"{peer[0]} ({peer[1]}, {peer[2]})" if peer else "-" for peer in (runtime, vino)), f"{after[3]:.1f}",
             f"{runtime[3]:.0f}" if runtime else "-"]
    return "| " + " | ".join(map(str, cells)) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    listed = json.loads((options.models / "models.json").read_text())
    only = [name for name in options.only.split(",") if name]
    print("| model | nodes | MB moved | reorders, Transposes left | ms | ONNX Runtime: nodes (reorders, Transposes) "
          "| OpenVINO: the same | passes ms | ONNX Runtime: session ms |\n|" + " --- |" * 9, flush=True)
    for entry in listed["models"] if isinstance(listed, dict) else listed:
        if not only or entry["name"] in only:
            print(row(entry, options.models, options.lathe, options.rounds), flush=True)


if __name__ == "__main__":
    main()
