#!/usr/bin/env python3
"""Runs the programs of tests/python many times, each rank in an interpreter of its own, and counts hangs and crashes at exit.

    ENVIRONMENT/bin/python tests/python/judge/repeat.py [--times 20] [--forked]

--forked: the ranks are forked from this process after it has imported torch, which halves a run; each ends as an interpreter does.
A run fails if a rank does not end with exit code 0 within --limit seconds, not counting the time in which ranks waited for a core,
because on a busy machine that is most of it. A rank that does not end writes its stacks. Prints a row of a table for each program, with
the longest run's seconds without those in which this process was stopped, and how long a rank was on a core and waited for one in it. The
exit code is 1 if a run failed; the output of its ranks is then shown. --only TEXT: only the programs whose row contains it.
"""

import argparse
import faulthandler
import os
import pathlib
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAMS = pathlib.Path(__file__).parents[1] / "programs"
# The program, the number of ranks, further arguments.
SET = (
    ("operations.py", 2, ()),
    ("operations.py", 4, ()),
    ("training.py", 2, ("paceline",)),
    ("faults.py", 2, ("exit_with_work_in_flight",)),
    ("faults.py", 2, ("exit_without_destroying_groups",)),
    ("faults.py", 2, ("forked_workers",)),
)
TICK = 0.05


def on_and_before_a_core(process):
    """The seconds for which the main thread of a process has run, and the seconds for which it was ready to run but had no core."""
    try:
        running, waiting, _ = pathlib.Path(f"/proc/{process.pid}/schedstat").read_text().split()
    except OSError:
        return 0.0, 0.0
    return int(running) / 1e9, int(waiting) / 1e9


def wait(options, processes):
    """Waits for the processes and returns the seconds that it took, and the mean of those that they were on a core and waited for one."""
    times = {}
    # Ticks instead of a clock: time during which this process itself is stopped counts as at most one second a tick.
    passed = 0.0
    while any(process.poll() is None for process in processes):
        times.update((process, on_and_before_a_core(process)) for process in processes if process.poll() is None)
        if passed > options.limit + sum(waiting for _, waiting in times.values()):
            break
        begin = time.monotonic()
        time.sleep(TICK)
        passed += min(1.0, time.monotonic() - begin)
    return passed, *(sum(seconds) / len(processes) for seconds in zip(*times.values()))


class Forked:
    """A rank that continues in a child of this process; it has the methods of Popen that are used here."""

    def __init__(self, command, output, variables):
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.environ.update(variables)
            faulthandler.enable()
            sys.argv = command[1:]
            sys.path.insert(0, str(PROGRAMS))
            runpy.run_path(command[1], run_name="__main__")
            sys.exit(0)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid != 0 else None
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


def start(options, command, output):
    variables = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "PACELINE_BIND": "0"}
    if options.forked:
        return Forked(command, output, variables)
    return subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **variables})


def run(options, program, ranks, arguments):
    """The ranks' exit codes, None for one that had to be killed, their outputs, and what wait() returns."""
    folder = tempfile.mkdtemp()  # without a context manager: a forked rank, which leaves this function, would delete it
    paths = [pathlib.Path(folder, f"rank{rank}") for rank in range(ranks)]
    processes = []
    for rank, path in enumerate(paths):
        command = [sys.executable, str(PROGRAMS / program), str(rank), str(ranks), f"{folder}/store", *arguments]
        with path.open("w") as output:
            processes.append(start(options, command, output))
    seconds = wait(options, processes)
    codes = [process.poll() for process in processes]
    for process in processes:
        process.send_signal(signal.SIGABRT)  # the interpreter of one that hangs writes the stacks of its threads
    time.sleep(2 if None in codes else 0)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    while any(process.poll() is None for process in processes):
        time.sleep(TICK)
    outputs = [path.read_text(errors="replace") for path in paths]
    shutil.rmtree(folder)
    return codes, outputs, seconds


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--forked", action="store_true")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.forked:
        os.environ["OMP_NUM_THREADS"] = "1"
        import torch.distributed.checkpoint
        import torch.distributed.fsdp
        import torch.distributed.pipelining  # noqa: F401: the children need not import them
    failed = 0
    print("| program | ranks | runs | all ranks ended with 0 | hung | crashed | longest run, s | on a core | without one |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for program, ranks, arguments in SET:
        title = " ".join((program, *arguments))
        if options.only not in f"{title} {ranks}":
            continue
        hung = crashed = 0
        longest = (0.0, 0.0, 0.0)
        for number in range(options.times):
            codes, outputs, seconds = run(options, program, ranks, arguments)
            longest = max(longest, seconds)
            hung += None in codes
            crashed += any(codes) and None not in codes
            if any(code != 0 for code in codes):
                print(f"{title}, run {number}: exit codes {codes}", *outputs, sep="\n", file=sys.stderr)
        failed += hung + crashed
        good = options.times - hung - crashed
        seconds = f"{longest[0]:.0f} | {longest[1]:.1f} | {longest[2]:.0f}"
        print(f"| {title} | {ranks} | {options.times} | {good} | {hung} | {crashed} | {seconds} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
