#!/usr/bin/env python3
"""Which source files of a library may be compiled as one: source_groups.py ROOT reads paths, a line each, and prints
"GROUP PATH" for each.

Headers and their templates are read and instantiated once per group then, which is most of what a small file costs.
Files of a group share their anonymous namespaces. So that each means what it means alone, none names what another one
defines there, and no header does that is read behind it.
"""
import functools
import pathlib
import re
import sys

LARGEST = 10  # files: more gain little, and leave cores idle at a build's end
COMMENTS_AND_STRINGS = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ALONE = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$|^(static .*?)$", re.MULTILINE | re.DOTALL)
ATTRIBUTES = re.compile(r"\[\[.*?\]\] ?")
# At the start of a line, as clang-format leaves what stands in no braces: a type, an alias, a function, a constant.
DEFINED = re.compile(
    r"^(?:template\s*<[^\n]*>\s*)?"
    r"(?:(?:struct|class|union|enum(?: class)?)\s+(\w+)|using\s+(\w+)\s*=|\w[^\n(={;]*[\s&*](\w+)\s*[(={\[;])",
    re.MULTILINE,
)
# But members that are selected from something.
NAMED = re.compile(r"(?<![\w.>])[A-Za-z_]\w*")


@functools.cache
def text_of(path):
    return path.read_text(encoding="utf-8")


@functools.cache
def named_in(path):
    return frozenset(NAMED.findall(COMMENTS_AND_STRINGS.sub("", text_of(path))))


def defined_in(path):
    """What the file defines for itself alone."""
    alone = "\n".join(namespace or line for namespace, line in ALONE.findall(text_of(path)))
    found = DEFINED.findall(ATTRIBUTES.sub("", COMMENTS_AND_STRINGS.sub("", alone)))
    return {next(filter(None, names)) for names in found}


@functools.cache
def includes_of(path, root):
    folders = (root, root / "include", path.parent)
    return [folder / name for name in INCLUDE.findall(text_of(path)) for folder in folders if (folder / name).is_file()]


def headers_of(path, root):
    """Headers of ours that the file reads."""
    found, left = set(), [path]
    while left:
        new = set(includes_of(left.pop(), root)) - found
        found |= new
        left += new
    return found


class Group:
    def __init__(self):
        self.paths, self.defined, self.named, self.headers = [], set(), set(), set()

    def allows(self, path, defined, headers):
        if len(self.paths) == LARGEST or self.defined & named_in(path) or defined & self.named:
            return False
        return not any(self.defined & named_in(header) for header in headers - self.headers)

    def add(self, path, defined, headers):
        self.paths.append(path)
        self.defined |= defined
        self.named |= named_in(path)
        self.headers |= headers


def main():
    root = pathlib.Path(sys.argv[1])
    groups = []
    for path in sorted(pathlib.Path(line) for line in sys.stdin.read().split("\n") if line):
        file = path, defined_in(path), headers_of(path, root)
        group = next((g for g in groups if g.allows(*file)), None)
        if not group:
            group = Group()
            groups.append(group)
        group.add(*file)
    for number, group in enumerate(groups):
        for path in group.paths:
            print(number, path)


if __name__ == "__main__":
    main()
