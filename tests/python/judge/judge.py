#!/usr/bin/env python3
"""Runs PyTorch's own distributed tests with Gloo and with Paceline in its place, and compares the outcomes by the names of the tests.

    tests/python/judge/judge.py --tests PYTORCH/test/distributed --python ENVIRONMENT/bin/python [FILE...]

--tests: the folder of a source tree of PyTorch (the tests of 2.6.0 run with every later version). --python: an interpreter with torch,
pytest, expecttest, hypothesis, and the installed wheel. FILE: files below the folder; all that have tests for the CPU if none is named.
--world-size: ranks of those tests that ask for a number (default 2). --limit: seconds for a file. --results: the folder of the outcomes;
a file that has been judged there with Gloo is not run with Gloo again. --only TEXT: only tests whose name contains it.

Prints a row of a table for each file, and each test that passes with Gloo and not with Paceline. Such a test is run once more by itself,
because the tests are timed and the machine may be busy; the output says so if it passes then. The exit code is 1 if a test fails twice
that known_differences.txt does not list.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
FILES = """
test_distributed_spawn.py test_c10d_gloo.py test_c10d_common.py test_c10d_spawn_gloo.py test_c10d_object_collectives.py test_pg_wrapper.py
test_functional_api.py test_device_mesh.py optim/test_zero_redundancy_optimizer.py _composable/test_replicate.py
tensor/parallel/test_parallelize_api.py tensor/parallel/test_tp_style.py _tensor/test_dtensor.py _tensor/test_redistribute.py
checkpoint/test_file_system_checkpoint_cpu.py pipelining/test_schedule.py
""".split()


def run(options, file, backend, results, tests=()):
    """Runs the tests of a file, or only those of the given names, and returns their outcomes by name."""
    results.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/barrier")
        variables = {
            "JUDGE_BACKEND": backend,
            "JUDGE_RESULTS": str(results.resolve()),
            "PYTHONPATH": f"{HERE.resolve()}:{(options.tests / file).parent.resolve()}",
            "BACKEND": "gloo",
            "WORLD_SIZE": str(options.world_size),
            "TEMP_DIR": folder,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "PACELINE_BIND": "0",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "100",
        }
        # Without PyTorch's own configuration of pytest, which is for a certain version of it.
        command = [os.path.abspath(options.python), "-m", "pytest", "-c", os.devnull, "--rootdir=.", "--noconftest", "-q", *(tests or (file,))]
        command += ["-p", "in_gloos_place", "-p", "no:cacheprovider"]
        if options.only:
            command += ["-k", options.only]
        with results.with_suffix(".log").open("w") as log:
            process = subprocess.Popen(command, cwd=options.tests, env={**os.environ, **variables}, stdout=log, stderr=log,
                                       start_new_session=True)
            try:
                process.wait(options.limit)
            except subprocess.TimeoutExpired:
                print(f"{file}: {backend}: ended after {options.limit} s", file=sys.stderr)
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    return read(results)


def read(results):
    if not results.exists():
        return {}
    return {one["name"]: one for one in map(json.loads, results.read_text(encoding="utf-8").splitlines())}


def known():
    """The tests that are expected to differ: name and reason."""
    lines = (HERE / "known_differences.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def counts(outcomes):
    kinds = [one["outcome"] for one in outcomes.values()]
    return "/".join(str(kinds.count(kind)) for kind in ("passed", "failed", "skipped"))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--tests", required=True, type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1200)
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("build/judge"))
    parser.add_argument("--only", default="")
    parser.add_argument("files", nargs="*", default=FILES)
    options = parser.parse_args()
    expected = known()
    worse = []
    print("| file | Gloo: passed/failed/skipped | Paceline | with Paceline's groups | s |\n|---|---|---|---|---|", flush=True)
    for file in options.files:
        names = {backend: options.results / f"{file.replace('/', '.')}.{options.world_size}.{backend}.jsonl" for backend in ("gloo", "paceline")}
        names["gloo"].parent.mkdir(parents=True, exist_ok=True)
        theirs = read(names["gloo"]) if names["gloo"].exists() and not options.only else run(options, file, "gloo", names["gloo"])
        begin = time.monotonic()
        ours = run(options, file, "paceline", names["paceline"])
        with_groups = sum(one["groups"] > 0 for one in ours.values())
        print(f"| {file} | {counts(theirs)} | {counts(ours)} | {with_groups} | {time.monotonic() - begin:.0f} |", flush=True)
        differing = {name: ours[name]["outcome"] if name in ours else "not run" for name, one in theirs.items() if one["outcome"] == "passed"}
        differing = {name: outcome for name, outcome in differing.items() if outcome != "passed"}
        suspects = [name for name in differing if name not in expected]
        again = run(options, file, "paceline", names["paceline"].with_suffix(".again.jsonl"), suspects) if suspects else {}
        for name, outcome in differing.items():
            if name in expected:
                note = f"known: {expected[name]}"
            elif again.get(name, {}).get("outcome") == "passed":
                note = "passed when run again"
            else:
                note = "the same when run again"
                worse.append(name)
            print(f"    {name}: {outcome}; {note}", flush=True)
    if worse:
        print(f"{len(worse)} tests pass with Gloo and not with Paceline", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
