#!/usr/bin/python3
"""train_gpt on two hosts with a slow link between them: learners with outer steps, beside DistributedDataParallel. Needs root.

    /usr/bin/python3 benchmarks/slow_link.py build/release --rounds 2             # tokens a second at 50 Mbit/s and 80 ms there and back
    /usr/bin/python3 benchmarks/slow_link.py build/release --losses --rounds 3    # losses after equal tokens, a seed each; one host

The hosts are network namespaces (hosts.py). Each has a rank of one thread. The speeds are those of small batches and a model of 3.3 million
parameters, of which DistributedDataParallel sends all in each step. --small takes train_gpt's own model and batch, which compute for longer.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile

from hosts import Hosts
from side_by_side import machine, program, spread

LIMIT_S = 1200
OUTER = ["--outer", "2", "--outer-period", "100", "--outer-fragments", "4", "--outer-delay", "12"]
WIDE = ["--width", "256", "--batch-size", "2", "--context", "64"]


def tokens_per_second(build, network, *flags):
    secret = tempfile.NamedTemporaryFile("w")  # of mode 0600
    secret.write(os.urandom(32).hex())
    secret.flush()
    agents = [subprocess.Popen(
        [*network.enter(number), program(build, "apps", "paceline"), "run", "--nnodes", "2", "--node-rank", str(number), "--master-addr",
         network.address(0), "--nproc-per-node", "1", "--threads-per-rank", "1", program(build, "examples", "train_gpt"), "--sample", "0", *flags],
        env={**os.environ, "PACELINE_SECRET_FILE": secret.name}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for number in (0, 1)]
    outputs = [agent.communicate(timeout=LIMIT_S)[0] for agent in agents]
    if any(agent.returncode for agent in agents):
        sys.exit(f"train_gpt failed:\n{outputs[0]}")
    return float(re.search(r"throughput +([\d.]+) tokens/s", outputs[0]).group(1))


def compare_speeds(options):
    ways = {"DistributedDataParallel": [], "LowCommunication": OUTER, "LowCommunication, int8": [*OUTER, "--outer-wire", "int8"]}
    model = [] if options.small else WIDE
    slow, free = {way: [] for way in ways}, {way: [] for way in ways}
    for _ in range(options.rounds):
        for way, flags in ways.items():
            steps = [*model, "--max-steps", str(options.ddp_steps if not flags else options.steps)]
            with Hosts(gbit=0.05, delay_ms=40) as network:
                slow[way].append(tokens_per_second(options.build, network, *steps, *flags))
            with Hosts() as network:
                free[way].append(tokens_per_second(options.build, network, *steps, *flags))
    print("| | tokens/s over the slow link | not limited | to DistributedDataParallel | to not limited |\n|---|---|---|---|---|")
    for way in ways:
        faster = spread([a / b for a, b in zip(slow[way], slow["DistributedDataParallel"])], 1)
        print(f"| {way} | {spread(slow[way], 0)} | {spread(free[way], 0)} | {faster} | {spread([a / b for a, b in zip(slow[way], free[way])])} |")


def compare_losses(options):
    def loss(seed, *flags):
        done = subprocess.run([program(options.build, "apps", "paceline"), "run", "--nproc-per-node", "2", "--threads-per-rank", "1",
                               program(options.build, "examples", "train_gpt"), "--sample", "0", "--seed", str(seed), "--max-steps",
                               str(options.steps), *flags], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return float(re.search(r"test perplexity .*\(loss ([\d.]+)\)", done.stdout).group(1))
    ratios = []
    for seed in range(options.rounds):
        plain, outer = loss(seed), loss(seed, *OUTER)
        ratios.append(outer / plain)
        print(f"seed {seed}: DistributedDataParallel {plain:.4f}, LowCommunication {outer:.4f}", flush=True)
    print(f"test loss after {options.steps} steps, LowCommunication to DistributedDataParallel: {spread(ratios, 4)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="for example build/release")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--ddp-steps", type=int, default=20, help="of DistributedDataParallel over the slow link")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--losses", action="store_true")
    options = parser.parse_args()
    print(f"{machine()}; {options.rounds} rounds\n", flush=True)
    (compare_losses if options.losses else compare_speeds)(options)


if __name__ == "__main__":
    main()
