#!/usr/bin/env python3
"""commands_test.py ROOT PACELINE [PROGRAM ...]: every command in the pages' blocks of code has options that the program knows.

Checks commands of `paceline` and of the PROGRAMs (train_image, train_gpt) against their help, and that scripts, tools and benchmarks that
are called by a path exist. Nothing is started but --help.
"""
import functools
import pathlib
import re
import subprocess
import sys

from page_commands import commands

ROOT, PACELINE, PROGRAMS = pathlib.Path(sys.argv[1]), sys.argv[2], {pathlib.Path(path).name: path for path in sys.argv[3:]}
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("benchmarks/*.md"))]
OPTION = re.compile(r"^--?[a-z][\w-]*")
# Commands of paceline whose arguments end with a program, which has options of its own.
STARTERS = {"run", "advise", "submit"}
# In descriptions of a form, not commands.
PLACEHOLDERS = {"COMMAND", "..."}


@functools.cache
def options(program, *words):
    """(the options that the help names, those of them that take a value)"""
    text = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=False).stdout
    names, with_value = set(), set()
    for line in text.split("\n"):
        match = re.match(r"^  (-\S+)( (?![ (])\S+)?", line)
        if match:
            names |= set(match[1].split(","))
            with_value |= set(match[1].split(",")) if match[2] else set()
    return names, with_value


def check(words):
    """Yields what is wrong with a command."""
    while words and words[0] in ("export", "sudo", "env", "exec"):
        words = words[1:]
    if not words:
        return
    name = words[0].split("/")[-1]
    if re.match(r"^(scripts|tools|benchmarks|containers)/", words[0]) and not (ROOT / words[0]).exists():
        yield f"{words[0]} does not exist"
    if (name in ("mpirun", "srun", "salloc") or words[:2] == ["podman", "run"]) and "paceline" in words:
        yield from check(words[words.index("paceline"):])
    elif name == "paceline" and words[1:2] == ["bench"] and "--against" in words:  # a command of the Python wheel
        known = re.findall(r'add_argument\("(--[\w-]+)"', (ROOT / "python/paceline/bench.py").read_text())
        yield from (f"paceline bench of the wheel has no option {word}" for word in words if OPTION.match(word) and word not in known)
    elif name == "paceline" and len(words) > 1 and words[1] not in PLACEHOLDERS and not words[1].startswith("-"):
        sub, rest = [words[1]], words[2:]
        if words[1] == "bench" and rest[:1] == ["rpc"] or words[1] == "submit" and rest:
            sub, rest = [*sub, rest[0]], rest[1:]
        yield from check_options([PACELINE, *sub], rest, words[1] in STARTERS)
    elif name in PROGRAMS:
        yield from check_options([PROGRAMS[name]], words[1:], False)


def check_options(program, words, starts):
    names, with_value = options(*program)
    label = " ".join([pathlib.Path(program[0]).name, *program[1:]])
    if not names:
        yield f"{label} does not exist"
        return
    i = 0
    while i < len(words):
        word = words[i]
        match = OPTION.match(word)
        if word == "--" or starts and not match and word not in PLACEHOLDERS and not word.startswith("["):
            yield from check(words[i + (word == "--"):])
            return
        if match:
            option = match[0].replace("_", "-") if match[0].startswith("--") else match[0]
            if option not in names:
                yield f"{label} has no option {option}"
            elif option in with_value and "=" not in word:
                i += 1
        i += 1


found, checked = [], 0
for page in PAGES:
    for number, words in commands(page):
        checked += 1
        found += [f"{page.relative_to(ROOT)}:{number}: {problem}" for problem in check(words)]
if checked < 100:
    found.append(f"only {checked} commands were found")
print("\n".join(found) if found else f"commands: {checked} commands of the pages have options that exist")
sys.exit(1 if found else 0)
