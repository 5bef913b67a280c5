#!/usr/bin/env python3
"""man_pages.py PACELINE FOLDER: writes a manual page for the command `paceline` and for each of its commands, from their help.

The help is made from the tables of options, so the pages always have the current options, defaults and ranges. Every page of FOLDER whose
name begins with "paceline" is replaced.
"""
import pathlib
import re
import subprocess
import sys

SECTION = re.compile(r"^([A-Z][A-Za-z ]*):$")
# "  --nnodes N|MIN:MAX=1 (Env:PET_NNODES)   Machines of the job": names, value, variable, help.
OPTION = re.compile(r"^  (-\S+|[A-Z]+)((?: (?![ (])\S+)*)(?: \(Env:(\w+)\))?(?:\s+(\S.*))?$")
WORD = re.compile(r"^  (\S+(?: +[A-Z0-9]+)*)  +(\S.*)$")
# Words of the command's summary, which the page has for all its commands.
ENVIRONMENT = """A variable PACELINE_* reaches the ranks on all hosts; an unknown one is reported. PACELINE_LOG_LEVEL (error, warning, info,
debug) sets what is logged, PACELINE_TIMEOUT the seconds for which a call of a group may wait."""


def escaped(text):
    """Text for roff: hyphens that can be copied, and no line that looks like a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.M)


def bold(text):
    return f"\\fB{escaped(text)}\\fR"


class Page:
    """A manual page that is made from a help text."""

    def __init__(self, name, summary, version):
        self.lines = [f'.TH {name.upper()} 1 "" "Paceline {version}" "User Commands"', ".nh", ".ad l", ".SH NAME", f"{escaped(name)} \\- {escaped(summary)}"]

    def section(self, title):
        self.lines.append(f".SH {title.upper()}")

    def paragraph(self, text):
        self.lines += [".PP", escaped(" ".join(text.split()))]

    def option(self, names, value, about, variable=""):
        label = ", ".join(bold(name) for name in names.split(","))
        if value:
            label += f" \\fI{escaped(value)}\\fR"
        self.lines += [".TP", label, escaped(about)]
        if variable:
            self.lines += [".br", f"Variable: {escaped(variable)}."]

    def code(self, lines):
        self.lines += [".nf", *map(escaped, lines), ".fi"]

    def text(self):
        return "\n".join(self.lines) + "\n"


def add_usage(page, usage):
    page.section("synopsis")
    page.code([re.sub(r"^(Usage:|      ) *", "", line) for line in usage])


def add_help(page, lines):
    """The sections of a help text: options, words that the command takes, notes and examples."""
    i, in_section, notes = 0, False, []
    while i < len(lines):
        line = lines[i]
        section = SECTION.match(line)
        if section and section[1] == "Examples":
            page.section("examples")
            page.code([one[2:] for one in lines[i + 1:] if one.strip()])
            break
        if section:
            page.section("options" if section[1] in ("Options", "Help") else section[1])
            in_section = True
        elif in_section and (option := OPTION.match(line)) and (line.startswith("  -") or "Positionals" not in line):
            about = option[4] or ""
            while i + 1 < len(lines) and re.match(r"^ {20,}\S", lines[i + 1]):
                i += 1
                about += (" " if about else "") + lines[i].strip()
            page.option(option[1], option[2].strip(), about, option[3] or "")
        elif in_section and (word := WORD.match(line)):
            page.option(re.sub(r" +", " ", word[1]), "", word[2])
        elif line.strip():
            if in_section or not notes:
                page.section("notes" if in_section else "description")
                in_section = False
            notes.append(line)
            if i + 1 == len(lines) or not lines[i + 1].strip():
                page.paragraph(" ".join(notes))
                notes = []
        i += 1


def help_of(program, *command):
    return subprocess.run([program, *command, "--help"], capture_output=True, text=True, check=True).stdout.rstrip().split("\n")


def page_of_command(program, name, words, summary, version):
    page = Page(f"paceline-{name}", summary, version)
    lines = help_of(program, *words)
    start = next(i for i, line in enumerate(lines) if line.startswith("Usage:"))
    end = start + 1
    while end < len(lines) and lines[end].startswith("       "):
        end += 1
    add_usage(page, lines[start:end])
    page.section("description")
    for line in lines[:start]:
        page.paragraph(line)
    add_help(page, lines[end:])
    page.section("see also")
    page.lines.append("\\fBpaceline\\fR(1)")
    return page.text()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("paceline*.1*"):
        old.unlink()
    lines = help_of(program)
    commands = []
    for line in lines[lines.index("Commands:") + 1:]:
        if not line.strip():
            break
        commands.append(line.split(None, 1))
    page = Page("paceline", "launch, explain and measure distributed training", version)
    add_usage(page, lines[:1])
    page.section("description")
    page.paragraph("paceline run starts a program as several ranks on one machine or many. The other commands show running jobs, explain "
                   "failures and hangs, work on checkpoints, and measure collectives and calls.")
    page.section("commands")
    for name, summary in commands:
        page.option(name, "", f"{summary}; see paceline-{name}(1)")
    add_help(page, lines[lines.index("Options:"):])
    page.section("environment")
    page.paragraph(ENVIRONMENT)
    page.section("see also")
    page.lines.append(", ".join(f"\\fBpaceline\\-{name}\\fR(1)" for name, _ in commands))
    (folder / "paceline.1").write_text(page.text())
    for name, summary in commands:
        (folder / f"paceline-{name}.1").write_text(page_of_command(program, name, [name], summary, version))
    (folder / "paceline-bench-rpc.1").write_text(
        page_of_command(program, "bench-rpc", ["bench", "rpc"], "measure calls between workers", version))
    print(f"man_pages: {len(commands) + 2} pages in {folder}")


main()
