"""Starts the ranks of a test: `ranks(N, script, ...)` runs a program of tests/python/programs N times, and returns what each rank did."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

PROGRAMS = pathlib.Path(__file__).with_name("programs")
LIMIT = 120  # seconds: no test may hang


@dataclasses.dataclass
class Rank:
    process: subprocess.Popen
    out: str = ""
    code: int = None

    @property
    def results(self):
        """The JSON objects that the rank printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


class Ranks(list):
    def wait(self, limit=LIMIT):
        """Waits until all ranks have ended; those that have not within the limit are killed, which fails the test."""
        end = time.monotonic() + limit
        late = []
        for number, rank in enumerate(self):
            try:
                rank.out, _ = rank.process.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(number)
                rank.process.kill()
                rank.out, _ = rank.process.communicate()
            rank.code = rank.process.returncode
        assert not late, f"ranks {late} did not end within {limit} s:\n" + "\n".join(self[number].out for number in late)
        return self

    def signal(self, number, which):
        os.kill(self[number].process.pid, which)


@pytest.fixture
def start(tmp_path):
    """start(N, program, *arguments, **variables): starts N ranks that meet in a file. The program's first arguments are the rank, the
    number of ranks and the file."""
    started = Ranks()

    def start_ranks(count, program, *arguments, **variables):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PACELINE_BIND": "0", **variables}
        store = tmp_path / f"store{len(started)}"
        ranks = Ranks()
        for number in range(count):
            command = [sys.executable, str(PROGRAMS / program), str(number), str(count), str(store), *map(str, arguments)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
            ranks.append(Rank(process))
        started.extend(ranks)
        return ranks

    yield start_ranks
    for rank in started:
        if rank.process.poll() is None:
            rank.process.send_signal(signal.SIGKILL)
            rank.process.communicate()
