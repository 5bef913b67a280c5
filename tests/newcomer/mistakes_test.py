#!/usr/bin/env python3
"""mistakes_test.py PAGE PACELINE PROGRAM NAME: checks what docs/mistakes.md says about the mistake NAME.

Runs the commands of its section, and compares the output and the exit code. Each line of the section must be a whole line of the
output, without the rank's mark; "..." stands for any text.
"""

import os
import re
import socket
import subprocess
import sys
import tempfile

LONGEST_RUN = 90  # seconds
MARK = re.compile(r"^\[[^\]]*\] ")  # the launcher's mark of a rank


def section_of(page, name):
    """The commands, the expected lines, and the exit code."""
    text = re.search(rf"^## {re.escape(name)}\n(.*?)(?=^## |\Z)", page, re.M | re.S).group(1)
    block = re.search(r"^```\n(.*?)^```$", text, re.M | re.S).group(1).splitlines()
    commands = [line[2:] for line in block if line.startswith("$ ")]
    code = int(re.fullmatch(r"exit code (\d+)", block[-1]).group(1))
    return commands, block[len(commands):-1], code


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(commands, paceline, program):
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.abspath(program), f"{folder}/train")
        environment = dict(os.environ, PATH=f"{os.path.dirname(os.path.abspath(paceline))}:{os.environ['PATH']}",
                           TMPDIR=folder, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1",
                           PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
        script = "\n".join(commands).replace("29500", free_port())
        done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, text=True, timeout=LONGEST_RUN,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.stdout, done.returncode


def problems_of(output, code, wanted, wanted_code):
    lines = [MARK.sub("", line) for line in output.splitlines()]
    problems = [] if code == wanted_code else [f"exit code {code}, not {wanted_code}"]
    for line in wanted:
        pattern = ".*".join(map(re.escape, line.split("...")))
        if not any(re.fullmatch(pattern, printed) for printed in lines):
            problems.append(f"no line is: {line}")
    if any("terminate called" in line for line in lines):
        problems.append("the C++ library's words")
    # A report is its first line and the indented lines below it. The output of another rank may follow directly.
    reports = [re.match(r".*(?:\n  .*)*", text)[0] for text in output.split(" failed first: ")[1:]]
    causes = [re.search(r"^  cause: (.*)$", report, re.M) for report in reports]
    if len(reports) > 1 or not all(causes):
        problems.append("the launcher does not report one failure with its cause")
    problems += [f"the launcher repeats: {cause[1]}" for report, cause in zip(reports, causes)
                 if cause and report.count(cause[1]) > 1]
    return problems


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        commands, wanted, wanted_code = section_of(file.read(), sys.argv[4])
    output, code = run(commands, sys.argv[2], sys.argv[3])
    problems = problems_of(output, code, wanted, wanted_code)
    if problems:
        print("\n".join(problems), "\nof the output:\n" + output)
    return 1 if problems else 0


sys.exit(main())
