#!/usr/bin/env python3
"""compile_with_installed.py BUILD mistakes SOURCE...   each source must fail, in at most 15 lines, with the text of its first line
compile_with_installed.py BUILD programs SOURCE...   each source must compile

BUILD is the configured build folder of tests/package/consumer: sources are checked with the flags of its with_libtorch.cpp, so with the
installed headers only."""
import json
import pathlib
import shlex
import subprocess
import sys

MOST_LINES = 15


def flags(build):
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        if entry["file"].endswith("with_libtorch.cpp"):
            words = shlex.split(entry["command"])
            return [word for i, word in enumerate(words) if word not in ("-c", "-o", entry["file"]) and words[i - 1] != "-o"]
    sys.exit("compile_with_installed: with_libtorch.cpp has no command")


def main():
    command = flags(sys.argv[1])
    is_mistake = sys.argv[2] == "mistakes"
    failures = 0
    for source in sys.argv[3:]:
        done = subprocess.run(command + ["-fsyntax-only", "-I", str(pathlib.Path(source).parent), source], capture_output=True, text=True)
        lines = done.stderr.splitlines()
        if not is_mistake:
            if done.returncode != 0:
                print(f"FAILED: {source} does not compile with the installed headers:", *lines[:20], sep="\n")
                failures += 1
            continue
        wanted = pathlib.Path(source).read_text().splitlines()[0].removeprefix("// wanted: ")
        error = next((line for line in lines if "error:" in line), "no error")
        if done.returncode == 0 or wanted not in error or len(lines) > MOST_LINES:
            print(f"FAILED: {source}: wanted at most {MOST_LINES} lines with '{wanted}' in the first error, not {len(lines)}:", *lines[:20], sep="\n")
            failures += 1
    if failures:
        sys.exit(1)
    print(f"compile_with_installed: {len(sys.argv) - 3} {sys.argv[2]} are as wanted")


main()
