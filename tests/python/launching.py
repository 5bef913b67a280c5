"""Starts a program with two ranks under torchrun or `paceline run`, and reads the facts that each rank printed."""

import json
import os
import pathlib
import re
import subprocess
import sys

PROGRAMS = pathlib.Path(__file__).with_name("programs")
COMMANDS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"],
    "paceline": [str(pathlib.Path(sys.executable).with_name("paceline")), "run", "--nproc-per-node", "2", "--all-ranks"],
}


def launch(launcher, program, *arguments, may_fail_at_its_end=False, **variables):
    """The output of two ranks. `program`: a path, or the name of a file in programs/."""
    command = [*COMMANDS[launcher], str(PROGRAMS / program), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert outcome.returncode == 0 or may_fail_at_its_end, outcome.stdout + outcome.stderr
    return outcome.stdout + outcome.stderr


def train(launcher, backend, program="train.py", **variables):
    """The facts that the two ranks print as JSON objects that begin with the rank, in the order of the ranks."""
    # A process with torch 2.15's own Gloo aborts at its end in about one of four runs, after it has printed everything.
    out = launch(launcher, program, backend, may_fail_at_its_end=backend == "gloo", **variables)
    # Under torchrun two ranks may share a line.
    starts = [match.start() for match in re.finditer(r'{"rank"', out)]
    facts = [json.JSONDecoder().raw_decode(out, start)[0] for start in starts]
    assert len(facts) == 2, out
    return sorted(facts, key=lambda one: one["rank"])


def losses(facts):
    return [one["losses"] for one in facts]


def assert_close(mine, theirs, tolerance=1e-5):
    """`mine`, `theirs`: facts of two runs, whose losses are written in hexadecimal."""
    for one, two in zip(losses(mine), losses(theirs), strict=True):
        assert one
        for a, b in zip(one, two, strict=True):
            assert abs(float.fromhex(a) - float.fromhex(b)) <= tolerance, (one, two)
