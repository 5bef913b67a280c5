#!/usr/bin/env python3
"""Runs the programs of tests/python many times, each rank in an interpreter of its own, and counts hangs and crashes at exit.

    tests/python/judge/repeat.py --python ENVIRONMENT/bin/python [--times 20]

A run fails if a rank does not end with exit code 0 within --limit seconds. Prints a row of a table for each program. The exit code is 1 if
a run failed; the output of its ranks is then shown.
"""

import argparse
import os
import pathlib
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


def run(options, program, ranks, arguments):
    """The ranks' exit codes, None for one that had to be killed, and their outputs."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, f"rank{rank}") for rank in range(ranks)]
        processes = []
        for rank, path in enumerate(paths):
            command = [options.python, str(PROGRAMS / program), str(rank), str(ranks), f"{folder}/store", *arguments]
            variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PACELINE_BIND": "0"}
            with path.open("w") as output:
                processes.append(subprocess.Popen(command, stdout=output, stderr=output, env=variables))
        # Ticks instead of a clock: time during which this process itself is stopped does not count.
        for _ in range(round(options.limit / TICK)):
            if all(process.poll() is not None for process in processes):
                break
            time.sleep(TICK)
        codes = [process.poll() for process in processes]
        for process in processes:
            process.kill()
            process.wait()
        return codes, [path.read_text(errors="replace") for path in paths]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--limit", type=float, default=120)
    options = parser.parse_args()
    failed = 0
    print("| program | ranks | runs | all ranks ended with 0 | hung | crashed |\n|---|---|---|---|---|---|", flush=True)
    for program, ranks, arguments in SET:
        hung = crashed = 0
        for number in range(options.times):
            codes, outputs = run(options, program, ranks, arguments)
            hung += None in codes
            crashed += any(codes) and None not in codes
            if any(code != 0 for code in codes):
                print(f"{program} {' '.join(arguments)}, run {number}: exit codes {codes}", *outputs, sep="\n", file=sys.stderr)
        failed += hung + crashed
        good = options.times - hung - crashed
        print(f"| {' '.join((program, *arguments))} | {ranks} | {options.times} | {good} | {hung} | {crashed} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
