#!/usr/bin/env python3
"""Runs `lathe prove` on a set of models, with inputs as their list describes them.

    tools/prove_models.py --lathe build/release/tools/lathe --models FOLDER [--only NAME,...] [OPTION...]

FOLDER holds models.json: a list of {"name", "file", "inputs": {name: {"dtype", "shape", "gen"}}}, gen one of "normal", "ones",
"zeros", "tokens:COUNT" and "value:NUMBER". Other options go to `lathe prove`. Needs the Python package numpy.
Exit status: 0 when no model departs, else 1.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np


def made_input(spec, random):
    kind, _, number = spec.get("gen", "normal").partition(":")
    if kind == "tokens":
        values = random.integers(5, int(number), spec["shape"])
    elif kind == "value":
        values = np.full(spec["shape"], float(number))
    elif kind in ("ones", "zeros"):
        values = np.full(spec["shape"], float(kind == "ones"))
    else:
        values = random.standard_normal(spec["shape"])
    return values.astype(spec["dtype"])


def prove(lathe, path, inputs, options):
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        for place, spec in enumerate(inputs.values()):
            np.save(f"{folder}/{place}.npy", made_input(spec, random))
        begin = time.monotonic()
        done = subprocess.run([lathe, "prove", path, "--input-dir", folder, *options], capture_output=True, text=True)
        return done.returncode == 0, f"{(done.stdout + done.stderr).strip()} ({time.monotonic() - begin:.0f} s)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lathe", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    given, options = parser.parse_known_args()
    only = [name for name in given.only.split(",") if name]
    all_right = True
    for entry in json.loads((given.models / "models.json").read_text()):
        if not only or entry["name"] in only:
            is_right, text = prove(given.lathe, given.models / entry["file"], entry["inputs"], options)
            print(f"{entry['name']}: {text}", flush=True)
            all_right = all_right and is_right
    sys.exit(not all_right)


if __name__ == "__main__":
    main()
