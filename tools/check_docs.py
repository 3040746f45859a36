#!/usr/bin/env python3
"""Fails on a document that names what is not there: a link, a file or folder of the repository, an option of the program.

Usage: check_docs.py ROOT [PROGRAM]. Prints one line per offence; exit code 1 when there is one. Options are checked only
in lines about the program and in docs/cli.md.
"""
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\]\(([^)#\s]+)")
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:src|graph|jit|ops|tuner|cache|tools|tests|docs|examples|include|cmake)(?:/[\w.*-]+)*/?$")
FILE_ENDINGS = (".h", ".cpp", ".py", ".sh", ".md", "/")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FOREIGN = re.compile(r"cmake|objdump|sqlite3|apt-get")


def documents(root):
    return [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md"))]


def known_options(program):
    def help_of(*words):
        return subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True).stdout

    main = help_of()
    verbs = re.findall(r"^  ([\w-]+) ", main.partition("Subcommands:")[2], re.M)
    return set(OPTION.findall("\n".join([main, *map(help_of, verbs)])))


def offences(root, path, options):
    text = path.read_text()
    for link in LINK.findall(text):
        if "://" not in link and not (path.parent / link).exists():
            yield f"links to {link}, which is not there"
    for quoted in QUOTED.findall(text):
        if PATH.match(quoted) and quoted.endswith(FILE_ENDINGS) and "<" not in quoted and not list(root.glob(quoted)):
            yield f"names {quoted}, which is not there"
    for line in text.splitlines():
        if options is None or FOREIGN.search(line) or not (path.name == "cli.md" or "lathe " in line):
            continue
        for option in OPTION.findall(line):
            if option not in options:
                yield f"names {option}, which the program does not have"


if __name__ == "__main__":
    top = pathlib.Path(sys.argv[1])
    program_options = known_options(sys.argv[2]) if len(sys.argv) > 2 else None
    found = [f"{path.relative_to(top)}: {what}" for path in documents(top)
             for what in offences(top, path, program_options)]
    print("\n".join(found) or "documents: every link, path and option is there")
    sys.exit(1 if found else 0)
