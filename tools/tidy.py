#!/usr/bin/env python3
"""Lints our sources with clang-tidy: tidy.py BUILD_FOLDER [FILES...] [--jobs N]; all but other packages' without FILES.

A file that was clean is not looked at again until it, a header of ours that it reads, the checks or clang-tidy change:
stamps are in BUILD_FOLDER/tidy. Prints what clang-tidy says, then one line per file with findings; exit code 1 when
there is one.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# These need other packages than the build.
OTHERS = [":!tests/package/*", ":!tools/onednn/*"]
# Standard headers of g++ use what they deprecate; its warnings have names that clang does not know.
FLAGS = ["-Wno-unknown-warning-option", "-Wno-deprecated-declarations"]


@functools.cache
def includes_of(file):
    """Headers of ours that `file` names."""
    names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read_text(), re.MULTILINE)
    found = (folder / name for name in names for folder in (ROOT, ROOT / "include", file.parent))
    return [header for header in found if header.is_file()]


def stamp_of(source, salt):
    reached, left = {source}, [source]
    while left:
        new = set(includes_of(left.pop())) - reached
        reached |= new
        left += new
    digest = hashlib.sha256(salt)
    for path in sorted(reached):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def precompile(entry, clang, output):
    """Makes the target's precompiled header, which is g++'s in the build, one of clang."""
    words = shlex.split(entry["command"])
    header = words[words.index("-include") + 1]
    flags = words[1 : words.index("-Winvalid-pch")]
    command = [clang, *flags, "-w", "-x", "c++-header", header, "-o", str(output)]
    subprocess.run(command, cwd=entry["directory"], check=True)


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
    clang = shutil.which(pathlib.Path(tidy).name.replace("clang-tidy", "clang++"))
    database = args.build / "compile_commands.json"
    if not database.exists():
        subprocess.run(["cmake", "-B", args.build, "-G", "Ninja", "--log-level=WARNING"], check=True)
    cache = args.build.resolve() / "tidy"
    cache.mkdir(exist_ok=True)
    versions = b"".join(subprocess.run([c, "--version"], capture_output=True).stdout for c in (tidy, "g++"))
    salt = versions + (ROOT / ".clang-tidy").read_bytes()

    stamps = {f: cache / stamp_of(ROOT / f, salt) for f in files}
    left = [f for f in files if not stamps[f].exists()]
    entries = json.loads(database.read_text())
    wanted = {str(ROOT / f) for f in left}
    headers = {}  # g++'s precompiled header -> clang's
    for entry in entries:
        used = re.search(r" -Winvalid-pch -include (\S+)", entry["command"])
        if not used:
            continue
        if entry["file"] in wanted and clang:
            headers[used[1]] = cache / (hashlib.sha256(used[1].encode()).hexdigest()[:16] + ".pch")
        ours = f" -include-pch {headers[used[1]]}" if used[1] in headers else ""
        if not entry["file"].endswith("cmake_pch.hxx.cxx"):
            entry["command"] = entry["command"].replace(used[0], ours)
    (cache / "compile_commands.json").write_text(json.dumps(entries))

    def lint(file):
        extra = [f"--extra-arg={flag}" for flag in FLAGS]
        command = [tidy, "--quiet", "-p", str(cache), "--warnings-as-errors=*", *extra, file]
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if result.returncode == 0:
            stamps[file].touch()
        return file, result

    bad = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        sources = {header + ".cxx": ours for header, ours in headers.items()}
        made = [pool.submit(precompile, e, clang, sources[e["file"]]) for e in entries if e["file"] in sources]
        for each in made:
            each.result()
        for file, result in pool.map(lint, left):
            if result.returncode != 0:
                print(result.stdout, end="", flush=True)
                bad.append(file)
    for file in bad:
        print("tidy:", file, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
