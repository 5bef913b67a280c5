#!/usr/bin/env python3
"""compile_with_installed.py BUILD mistakes SOURCE...   each source must fail, in at most 15 lines, with the text of its first line
compile_with_installed.py BUILD programs SOURCE...   each source must compile

BUILD is the configured build folder of tests/package/consumer: sources are checked with the flags of its with_libtorch.cpp, so with the
installed headers only. They share one precompiled copy of <torch/torch.h> and <paceline/paceline.h>, which takes longer to read than any of
them. The compiler runs through CMAKE_CXX_COMPILER_LAUNCHER, so that ccache knows the programs again; it keeps no errors, so mistakes run
without."""
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

MOST_LINES = 15
PRELUDE = "prelude.h"  # in BUILD


def compiler(build, launcher):
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
        if entry["file"].endswith("with_libtorch.cpp"):
            words = shlex.split(entry["command"])
            return ([launcher] if launcher else []) + [
                word for i, word in enumerate(words) if word not in ("-c", "-o", entry["file"]) and words[i - 1] != "-o"]
    sys.exit("compile_with_installed: with_libtorch.cpp has no command")


def run(command):
    return subprocess.run(command, capture_output=True, text=True, cwd=sys.argv[1])


def mistake(command, source):
    """The problem with the error that a mistake causes; empty if there is none."""
    done = run(command + ["-fsyntax-only", "-include", PRELUDE, source])
    lines = done.stderr.splitlines()
    wanted = pathlib.Path(source).read_text().splitlines()[0].removeprefix("// wanted: ")
    error = next((line for line in lines if "error:" in line), "no error")
    if done.returncode != 0 and wanted in error and len(lines) <= MOST_LINES:
        return ""
    return "\n".join([f"wanted at most {MOST_LINES} lines with '{wanted}' in the first error, not {len(lines)}:", *lines[:20]])


def program(command, source):
    """The error of a program that does not compile; empty if it does."""
    folder = pathlib.Path(source).parent
    done = run(command + ["-include", PRELUDE, "-I", str(folder), "-I", str(folder.parents[1]), "-c", source,
                          "-o", pathlib.Path(source).stem + ".o"])
    if done.returncode == 0:
        return ""
    return "\n".join(["it does not compile with the installed headers:", *done.stderr.splitlines()[:20]])


def digest_of_headers(command):
    folders = (pathlib.Path(sys.argv[1]) / word.removeprefix("-I") / "paceline" for word in command)
    headers = next(folder for folder in folders if folder.is_dir())
    digest = hashlib.sha256()
    for header in sorted(headers.rglob("*.h")):
        digest.update(header.read_bytes())
    return digest.hexdigest()


def precompile(command):
    prelude = pathlib.Path(sys.argv[1]) / PRELUDE
    if prelude.exists():
        return
    # ccache takes headers for equal that differ in comments only, but the compiler would then read such a header twice, because it is not
    # the one in the precompiled copy. The digest tells them apart.
    prelude.write_text("#include <torch/torch.h>\n#include <paceline/paceline.h>\n"
                       f'inline constexpr const char* kHeadersOfThePrelude = "{digest_of_headers(command)}";\n')
    done = run(command + ["-x", "c++-header", PRELUDE, "-o", f"{PRELUDE}.gch"])
    if done.returncode != 0:
        sys.exit("FAILED: the installed headers do not compile:\n" + done.stderr[:4000])


def main():
    kind = sys.argv[2]
    launcher = os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER")
    precompile(compiler(sys.argv[1], launcher))
    command = compiler(sys.argv[1], launcher if kind == "programs" else None)
    sources = [str(pathlib.Path(source).resolve()) for source in sys.argv[3:]]
    failures = 0
    for source in sources:
        problem = mistake(command, source) if kind == "mistakes" else program(command, source)
        if problem:
            print(f"FAILED: {source}: {problem}")
            failures += 1
    if failures or not sources:
        sys.exit(f"compile_with_installed: {failures} of {len(sources)} {kind} are not as wanted")
    print(f"compile_with_installed: {len(sources)} {kind} are as wanted")


main()
