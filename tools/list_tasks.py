#!/usr/bin/env python3
"""The tasks of a set of models, each once but for its constants: what `lathe bench-kernel --tasks` times.

    tools/list_tasks.py --lathe build/release/tools/lathe --models FOLDER [--only NAME,...] [OPTION...] >tools/kernel_tasks.txt

FOLDER holds models.json: a list of {"name", "file", "inputs": {name: {"shape"}}}. Other options go to `lathe inspect`.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys


def tasks_of(lathe, path, inputs, options):
    shapes = [part for name, spec in inputs.items() if spec["shape"]
              for part in ("--shape", f"{name}:{'x'.join(map(str, spec['shape']))}")]
    done = subprocess.run([lathe, "inspect", path, "--threads", "1", "--no-cache", "--show", "tasks", *shapes, *options],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{path}: {done.stderr.strip()}")
    return done.stdout.split("\n")[:-1]


def for_any_avx512(task):
    """Float kernels are the same on all CPUs with AVX-512, those for bytes on all with VNNI."""
    return re.sub(r" avx512_\w+|^conv avx512_\w+", lambda found: found[0].split("_")[0], task) \
        if re.match("(conv|gemm) ", task) else task


def without_constants(task):
    """Kernels do not differ in speed by an expression's constants, the range of weights or which zero point it is."""
    task = re.sub(r"\{-?[1-9]\d*\.\.-?\d+\}", "{..}", task)
    task = re.sub(r"int8\[\]\{-?[1-9]\d*\}", "int8[]{#}", task)
    return re.sub(r"-?\d+\.\d+(e[-+]?\d+)?|(?<=[+-] )\d+", "#", task)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="")
    arguments, options = parser.parse_known_args()
    seen = set()
    for model in json.loads((arguments.models / "models.json").read_text()):
        path = arguments.models / model["file"]
        if (arguments.only and model["name"] not in arguments.only.split(",")) or not path.exists():
            continue
        print(f"# {path.name}")
        for task in map(for_any_avx512, tasks_of(arguments.lathe, str(path), model["inputs"], options)):
            if without_constants(task) not in seen:
                print(task)
            seen.add(without_constants(task))


if __name__ == "__main__":
    main()
