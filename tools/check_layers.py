#!/usr/bin/env python3
"""Fails on an include that points upward or sideways between layers, and on a third-party header outside its door.

Usage: check_layers.py [ROOT]. Prints one line per offence; exit code 1 when there is one.
"""
import pathlib
import re
import sys

# Folder -> folders whose headers it may include. docs/architecture.md draws the same picture.
BASE = {"src/base", "include/base"}
LOWER = {"graph", "jit", "cache"}
ENGINE = BASE | LOWER | {"tuner", "ops"}
ALL = ENGINE | {"src/runtime", "include", "tools", "tests"}
MAY_INCLUDE = {
    "include/base": {"include/base"},
    "src/base": BASE,
    "graph": BASE | {"graph"},
    "jit": BASE | {"jit"},
    "cache": BASE | {"cache"},
    "tuner": BASE | {"cache", "tuner"},
    "ops": ENGINE,
    "include": {"include", "include/base"},
    "src/runtime": ENGINE | {"include", "src/runtime"},
    "tools": ALL - {"tests"},
    "tests": ALL,
    "examples": {"include", "include/base"},
    "docs": {"include", "include/base"},
}
BASE_PUBLIC = {"accuracy.h", "custom_op.h", "dtype.h", "error.h", "tensor.h", "value.h"}

# Third-party header (prefix of its name) -> files that may include it.
DOORS = [
    (r"(onnx|google/protobuf)/", r"graph/onnx/|tests/"),
    (r"sqlite3", r"cache/"),
    (r"(xbyak|asmjit)/", r"jit/|tests/jit/"),
    (r"hwloc", r"src/base/topology\.cpp$"),
    (r"re2/", r"ops/text/regex\.cpp$"),
    (r"(jpeglib|png|tiffio|openjpeg)\.h|webp/", r"ops/codecs/"),
    (r"CLI/", r"tools/"),
    (r"nlohmann/", r"tools/|tests/tools/"),
    (r"zip\.h", r"tools/|tests/tools/"),
    (r"pugixml", r"tools/|tests/tools/"),
    (r"(gtest|gmock)/", r"tests/"),
    (r"oneapi/", r"tools/onednn/"),  # an opponent, not a part
    (r"benchmark/", r"tests/|tools/"),
    (r"fmt/", r"(?!include/|examples/|docs/)"),
]
SYSTEM_FOLDERS = ("sys/", "linux/", "bits/", "asm/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def layer_of(path):
    """The layer of a file named from the root, or None."""
    if path.startswith("include/lathe/"):
        return "include/base" if path.split("/")[-1] in BASE_PUBLIC else "include"
    for layer in sorted(MAY_INCLUDE, key=len, reverse=True):
        if path.startswith(layer + "/"):
            return layer
    return None


def offence(path, layer, bracket, name):
    if name.startswith("lathe/"):
        target = layer_of("include/" + name)
    elif bracket == '"':
        target = layer_of(name)
        if target is None:
            return f"includes \"{name}\": write paths from the root, in a layer that exists"
    else:
        for header, door in DOORS:
            if re.match(header, name):
                return None if re.match(door, path) else f"includes <{name}> outside its door"
        if "/" in name and not name.startswith(SYSTEM_FOLDERS):
            return f"includes <{name}>, a library that no door is named for"
        return None
    if target not in MAY_INCLUDE[layer]:
        return f"includes {name}: {layer} may not see {target}"
    return None


def check(root):
    offences = []
    # Not all of the root: other tests write in its build folder meanwhile.
    tops = sorted({layer.split("/")[0] for layer in MAY_INCLUDE})
    for file in sorted(file for top in tops for file in (root / top).rglob("*")):
        path = file.relative_to(root).as_posix()
        layer = layer_of(path)
        if file.suffix not in (".h", ".cpp", ".in") or layer is None or path.startswith("tests/package/"):
            continue
        text = file.read_text()
        found = [offence(path, layer, *match.groups()) for match in INCLUDE.finditer(text)]
        if re.search(r"include\s*<xbyak/", text) and re.search(r"include\s*<asmjit/", text):
            found.append("includes both assemblers")
        offences += [f"{path}: {what}" for what in found if what]
    return offences


def self_test():
    """Each kind of offence is seen: a check that cannot fail checks nothing."""
    bad = [("graph/a.cpp", '"', "jit/kernel.h"), ("graph/a.cpp", '"', "ops/lower.h"), ("ops/a.cpp", "<", "sqlite3.h"),
           ("src/base/a.cpp", '"', "graph/graph.h"), ("graph/graph.cpp", "<", "onnx/onnx.pb.h"),
           ("src/base/a.h", '"', "lathe/session.h"), ("ops/a.cpp", "<", "boost/any.hpp"), ("jit/a.cpp", '"', "emitter.h"),
           ("tuner/a.cpp", '"', "jit/kernel.h"), ("include/lathe/a.h", "<", "fmt/format.h")]
    good = [("ops/a.cpp", '"', "jit/kernel.h"), ("graph/onnx/onnx_model.cpp", "<", "onnx/onnx.pb.h"),
            ("src/base/tensor.cpp", '"', "lathe/tensor.h"), ("cache/sqlite.h", "<", "sqlite3.h"),
            ("src/runtime/a.cpp", '"', "lathe/session.h"), ("jit/a.cpp", "<", "sys/mman.h")]
    for path, bracket, name in bad:
        assert offence(path, layer_of(path), bracket, name), (path, name)
    for path, bracket, name in good:
        assert not offence(path, layer_of(path), bracket, name), (path, name)


if __name__ == "__main__":
    self_test()
    found = check(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    print("\n".join(found) or "layers: every include points down")
    sys.exit(1 if found else 0)
