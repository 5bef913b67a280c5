"""Starts the ranks of a test: `start(N, program, ...)` runs a program of tests/python/programs N times, and tells what each rank did."""

import atexit
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import time
import traceback

import pytest
import torch  # noqa: F401: imported once, because ranks are forked from this process

PROGRAMS = pathlib.Path(__file__).with_name("programs")
LIMIT = 120  # seconds: no test may hang; the time in which ranks are ready and have no core does not count


class Rank:
    """A process whose output goes to a file. `code`: its exit code, or minus the signal that ended it; None while it runs. `ranks`: all
    ranks of the test."""

    def __init__(self, pid, path, ranks):
        self.pid, self.path, self.ranks, self.code = pid, path, ranks, None
        self._without_core = 0.0

    @property
    def out(self):
        return self.path.read_text(errors="replace")

    @property
    def results(self):
        """The JSON objects that the rank printed, one per line."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def has_ended(self):
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def signal(self, number):
        if not self.has_ended():
            os.kill(self.pid, number)

    @property
    def seconds_without_core(self):
        """For how long the rank's main thread has been ready to run and had no core."""
        try:
            self._without_core = int(pathlib.Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            pass  # the rank has ended
        return self._without_core

    def wait(self, limit=LIMIT):
        end = time.monotonic() + limit
        while not self.has_ended():
            is_late = time.monotonic() > end and time.monotonic() > end + sum(rank.seconds_without_core for rank in self.ranks)
            assert not is_late, f"a rank did not end within {limit} s:\n{self.out}"
            time.sleep(0.01)
        return self


class Ranks(list):
    def wait(self, limit=LIMIT):
        for rank in self:
            rank.wait(limit)
        return self


def _become_rank(program, arguments, variables, path):
    """Runs the program in this forked child, as the interpreter would, and ends the process."""
    code = 0
    try:
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = open(1, "w", buffering=1, closefd=False)
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        atexit._clear()  # those of the tests
        os.environ.update(variables)
        sys.argv = [program, *arguments]
        sys.path.insert(0, str(PROGRAMS))
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


@pytest.fixture
def start(tmp_path):
    """start(N, program, *arguments, own_interpreters=False, **variables): starts N ranks that meet in a file. The program's first
    arguments are the rank, the number of ranks and the file. The ranks are forked from the tests, which is ten times faster, because
    torch is imported already, or have interpreters of their own: own_interpreters is True, or a list of words, the command that starts
    the interpreter."""
    started = []

    def start_ranks(count, program, *arguments, own_interpreters=False, **variables):
        variables = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PACELINE_BIND": "0", **variables}
        store = tmp_path / f"store{len(started)}"
        ranks = Ranks()
        for number in range(count):
            path = tmp_path / f"rank{len(started)}"
            words = [str(number), str(count), str(store), *map(str, arguments)]
            script = str(PROGRAMS / program)
            if own_interpreters:
                with path.open("w") as output:
                    command = [*(own_interpreters if isinstance(own_interpreters, list) else ()), sys.executable, script, *words]
                    process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **variables})
                process.returncode = 0  # the test waits for the process itself
                pid = process.pid
            else:
                path.touch()
                pid = os.fork()
                if pid == 0:
                    _become_rank(script, words, variables, path)
            ranks.append(Rank(pid, path, started))
            started.append(ranks[-1])
        return ranks

    yield start_ranks
    for rank in started:
        if not rank.has_ended():
            os.kill(rank.pid, signal.SIGKILL)
            rank.wait()
