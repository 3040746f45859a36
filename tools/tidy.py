#!/usr/bin/env python3
"""Lints our sources with clang-tidy: tidy.py BUILD_FOLDER [FILES...] [--jobs N]; all but other packages' without FILES.

Files that the build compiles together (cmake/source_groups.py) are linted together. What was clean is not looked at
again until it, a header of ours that it reads, the checks or clang-tidy change: stamps are in BUILD_FOLDER/tidy. Prints
what clang-tidy says, then one line per group with findings; exit code 1 when there is one.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "cmake"))
import source_groups  # noqa: E402  (found there)

# These need other packages than the build.
OTHERS = [":!tests/package/*", ":!tools/onednn/*"]
# Standard headers of g++ use what they deprecate; its warnings have names that clang does not know.
FLAGS = ["-Wno-unknown-warning-option", "-Wno-deprecated-declarations"]


def stamp_of(source, salt):
    digest = hashlib.sha256(salt)
    for path in sorted({source} | source_groups.headers_of(source, ROOT)):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    os.chdir(ROOT)
    listed = ["git", "ls-files", "*.cpp", *OTHERS]
    files = args.files or subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()

    tidy = shutil.which("clang-tidy-22") or shutil.which("clang-tidy")
    if not tidy:
        sys.exit("tidy: there is no clang-tidy; tools/setup.sh ci installs it")
    database = args.build / "compile_commands.json"
    if not database.exists():
        subprocess.run(["cmake", "-B", args.build, "-G", "Ninja", "--log-level=WARNING"], check=True)
    cache = args.build.resolve() / "tidy"
    cache.mkdir(exist_ok=True)
    versions = b"".join(subprocess.run([c, "--version"], capture_output=True).stdout for c in (tidy, "g++"))
    salt = versions + (ROOT / ".clang-tidy").read_bytes()

    # What the build compiles: the sources themselves, or groups that include them.
    linted = set()
    wanted = {ROOT / f for f in files}
    for entry in json.loads(database.read_text()):
        compiled = pathlib.Path(entry["file"])
        if compiled in wanted or "/Unity/" in entry["file"] and wanted & set(source_groups.includes_of(compiled, ROOT)):
            linted.add(compiled)
    stamps = {f: cache / stamp_of(f, salt) for f in linted}

    def lint(file):
        extra = [f"--extra-arg={flag}" for flag in FLAGS]
        where = ["-p", str(args.build), f"--config-file={ROOT}/.clang-tidy"]
        command = [tidy, "--quiet", *where, "--warnings-as-errors=*", *extra, str(file)]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if result.returncode == 0:
            stamps[file].touch()
        return file, result

    bad = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for file, result in pool.map(lint, sorted(f for f in linted if not stamps[f].exists())):
            if result.returncode != 0:
                print(result.stdout, end="", flush=True)
                bad.append(file)
    for file in bad:
        print("tidy:", file, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
