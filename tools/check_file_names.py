#!/usr/bin/env python3
"""Checks that every source file named in a page or a comment exists, and that a link's text is the name of its target.

A name with folders ("store/store.h") must be the end of a tracked path. Prints one line for each violation, as file:line: message, and
exits with 1 if there are any.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = re.compile(r"(?<![<\w/.${}*+%-])((?:[a-z_0-9]+/)*[a-z][a-z_0-9]*\.(?:h|cpp))\b(?![\w(])")
LINK = re.compile(r"\[([^\]]+\.(?:h|cpp))\]\(([^)#]+\.(?:h|cpp))\)")
# Files of other libraries, and invented names in examples.
FOREIGN = re.compile(r"(a_test|main|train|my_train|config)\.cpp|(torch|nccl|mpi|record_function|cuda_runtime_api)\.h|(linux|torch|gloo|grpcpp|ucp)/.*")


def tracked(*patterns):
    return subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def main():
    ends = set()
    for path in tracked():
        parts = path.split("/")
        ends |= {"/".join(parts[i:]) for i in range(len(parts))}
    found = []
    for path in tracked("*.md", "*.h", "*.cpp", "*.cmake", "*CMakeLists.txt"):
        is_source = path.endswith((".h", ".cpp"))
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            text = line[line.index("//"):] if is_source and "//" in line else "" if is_source else line
            for name in NAME.findall(text):
                if name not in ends and not FOREIGN.fullmatch(name):
                    found.append(f"{path}:{number}: {name} does not exist")
            for words, target in LINK.findall(line):
                if words.split("/")[-1] != target.split("/")[-1]:
                    found.append(f"{path}:{number}: the link says {words} and leads to {target}")
    print("\n".join(found) if found else "check_file_names: every source file that pages and comments name exists")
    sys.exit(1 if found else 0)


main()
