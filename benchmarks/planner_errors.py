#!/usr/bin/env python3
"""Predicted and measured step time and memory of train_gpt, for meshes of 1 to 8 ranks on this machine and of 2 ranks
on two hosts (network namespaces, as root) with links of 1 and 10 Gbit/s:

    benchmarks/planner_errors.py build/release [--rounds 3] [--seconds 5] [--no-hosts]

In every round each number of ranks has its own profile, which was taken with as many ranks. A row has the medians of the
rounds. The bars: step time within 10% in the median and 20% at worst, memory within 10%.
"""
import argparse
import collections
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from hosts import Hosts

MESHES = {1: ["dp=1"],
          2: ["dp=2", "tp=2", "pp=2"],
          4: ["dp=4", "dp=2,tp=2", "dp=2,pp=2", "pp=4"],
          8: ["dp=8", "dp=4,pp=2"]}
MODEL = ["--layers", "4", "--width", "256", "--context", "128", "--sample", "0", "--epochs", "1000"]
BATCH = 16
PORT = 29431
ROW = re.compile(r"^(?P<mesh>pp=\S+|dp=\S+) +(?P<sharding>DDP|stage \d) +(?P<schedule>-|\S+ x\d+) +"
                 r"(?P<predicted>[\d.]+ m?s) +(?P<measured>[\d.]+ m?s) +\S+% +"
                 r"(?P<planned>[\d.]+ [MG]B) +(?P<taken>[\d.]+ [MG]B) ", re.M)
STEP = re.compile(r"^pp=1,dp=2,tp=1 +DDP +- +([\d.]+ m?s)", re.M)
Row = collections.namedtuple("Row", "mesh advised predicted measured planned taken", defaults=(None, None))  # in seconds and bytes
SCALE = {"ms": 1e-3, "s": 1.0, "MB": 1e6, "GB": 1e9}


def number(text):
    value, unit = text.split()
    return float(value) * SCALE[unit]


def advise(paceline, *arguments):
    command = [paceline, "advise", "--mesh", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def on_this_machine(paceline, program, profile, ranks, seconds):
    text = advise(paceline, "--ranks", str(ranks), "--profile", profile, "--seconds", str(seconds), "--patience", "180", "--check",
                  " ".join(MESHES[ranks]), "--", *program, "--global-batch-size", str(BATCH))
    rows = list(ROW.finditer(text))
    if len(rows) != len(MESHES[ranks]):
        sys.exit(f"planner_errors: not every mesh of {ranks} ranks was measured:\n{text}")
    return [Row(row["mesh"], f"{row['sharding']} {row['schedule']}".rstrip("- "), *(number(row[name]) for name in (
        "predicted", "measured", "planned", "taken"))) for row in rows]


def steps_on_two_hosts(paceline, program, gbit, seconds):
    """The seconds of a step with two replicas, one on each host."""
    with Hosts(gbit) as hosts, tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PACELINE_STEP_LOG": folder, "PACELINE_SECRET_FILE": os.path.join(folder, "secret")}
        with open(environment["PACELINE_SECRET_FILE"], "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("planner errors " * 4)
        agents = [subprocess.Popen(
            [*hosts.enter(host), paceline, "run", "--nnodes", "2", "--node-rank", str(host), "--nproc-per-node", "1",
             "--threads-per-rank", "1", "--rdzv-endpoint", f"{hosts.address(0)}:{PORT}", *program, "--global-batch-size",
             str(BATCH)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for host in (0, 1)]
        try:
            return steady_seconds(folder, agents, seconds)
        finally:
            for agent in agents:
                agent.terminate()
            for agent in agents:
                agent.communicate()


def steps_in(folder):
    """The seconds of each step that rank 0 has written so far."""
    steps = []
    for file in glob.glob(os.path.join(folder, "rank-000.jsonl")):
        with open(file) as lines:
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
        steps = [line["seconds"] for line in whole if line["event"] == "step"]
    return steps


def steady_seconds(folder, agents, seconds):
    """The mean of the steps after the third, once they add up to this many seconds."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and all(agent.poll() is None for agent in agents):
        time.sleep(0.2)
        steps = steps_in(folder)[3:]
        if sum(steps) > seconds:
            return statistics.mean(steps)
    sys.exit("planner_errors: no steps on two hosts: " + " ".join(agent.stderr.read() for agent in agents if agent.poll()))


def on_two_hosts(paceline, program, profile, gbit, seconds):
    machine = f"hosts=2,ranks=1,cores=1,link={gbit}Gbit,latency=50us"
    predicted = STEP.search(advise(paceline, "--simulate", machine, "--profile", profile, "--global-batch", str(BATCH),
                                   "--rows", "1000"))
    measured = steps_on_two_hosts(paceline, program, gbit, seconds)
    return Row(f"two hosts, {gbit} Gbit/s, dp=2", "DDP", number(predicted[1]), measured)


def spread(values):
    values = sorted(values)
    return f"{statistics.median(values):.0f} [{values[0]:.0f}, {values[-1]:.0f}]"


def error(predicted, measured):
    return 100 * (predicted - measured) / measured


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--seconds", type=int, default=5, help="of steps for each mesh")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-hosts", action="store_true", help="without network namespaces")
    arguments = parser.parse_args()
    paceline = os.path.join(arguments.build, "apps/paceline")
    program = [os.path.join(arguments.build, "examples/train_gpt"), *MODEL]
    rounds = []
    for _ in range(arguments.rounds):
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            profiles = {ranks: os.path.join(folder, f"{ranks}.json") for ranks in MESHES}
            for ranks in MESHES:
                rows += on_this_machine(paceline, program, profiles[ranks], ranks, arguments.seconds)
            for gbit in () if arguments.no_hosts else (1, 10):
                rows.append(on_two_hosts(paceline, program, profiles[2], gbit, arguments.seconds))
        rounds.append(rows)
    print("| mesh | advised | predicted | measured | error | memory planned | taken | error |\n|---|---|---|---|---|---|---|---|")
    steps, memory = [], []
    for rows in zip(*rounds):
        steps.append(statistics.median(error(row.predicted, row.measured) for row in rows))
        print(f"| {rows[0].mesh} | {', '.join(sorted({row.advised for row in rows}))} "
              f"| {spread(1e3 * row.predicted for row in rows)} ms | {spread(1e3 * row.measured for row in rows)} ms "
              f"| {steps[-1]:+.1f}% ", end="")
        if rows[0].planned is None:
            print("| - | - | - |")
            continue
        memory.append(statistics.median(error(row.planned, row.taken) for row in rows))
        planned, taken = (statistics.median(values) / 1e6 for values in zip(*((row.planned, row.taken) for row in rows)))
        print(f"| {planned:.0f} MB | {taken:.0f} MB | {memory[-1]:+.1f}% |")
    steps, memory = (sorted(map(abs, errors)) for errors in (steps, memory))
    print(f"\nstep: {statistics.median(steps):.1f}% in the median, {steps[-1]:.1f}% at worst; "
          f"memory: {statistics.median(memory):.1f}% in the median, {memory[-1]:.1f}% at worst")


if __name__ == "__main__":
    main()
