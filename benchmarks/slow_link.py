#!/usr/bin/python3
"""train_gpt on two hosts with a slow link between them: learners with outer steps, beside DistributedDataParallel. Needs root.

    /usr/bin/python3 benchmarks/slow_link.py build/release --rounds 2             # tokens a second at 50 Mbit/s and 80 ms there and back
    /usr/bin/python3 benchmarks/slow_link.py build/release --losses --rounds 3    # losses after equal tokens, a seed each; one host

The hosts are network namespaces (hosts.py). Each has a rank of one thread. The speeds are those of small batches and a model of 3.3 million
parameters, of which DistributedDataParallel sends all in each step. --small takes train_gpt's own model and batch, which compute for longer. torchft's
DiLoCo (torchft_learner.py) has turns if the Python that runs this script has it: pip install torch==2.14.1 numpy torchft==0.2.0
"""
import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

from hosts import Hosts
from side_by_side import machine, program, spread, start, wait_all

LIMIT_S = 1200
OUTER = ["--outer", "2", "--outer-period", "100", "--outer-fragments", "4", "--outer-delay", "20"]
SCHEDULE = ["--lr-schedule", "cosine", "--warmup", "40"]  # of the comparison of losses
WIDE = ["--width", "256", "--batch-size", "2", "--context", "64"]  # torchft_learner.py takes the values in this order


def tokens_per_second(network, command, env):
    """What the first of two programs prints. `command` and `env` are those of a host's number."""
    programs = [start([*network.enter(number), *command(number)], env(number)) for number in (0, 1)]
    wait_all(programs, LIMIT_S)
    return float(re.search(r"throughput +([\d.]+) tokens/s", programs[0].output).group(1))


def train_gpt(build, network, *flags):
    with tempfile.NamedTemporaryFile("w") as secret:  # of mode 0600
        secret.write(os.urandom(32).hex())
        secret.flush()
        return tokens_per_second(network, lambda number: [
            program(build, "apps", "paceline"), "run", "--nnodes", "2", "--node-rank", str(number), "--master-addr", network.address(0),
            "--nproc-per-node", "1", "--threads-per-rank", "1", program(build, "examples", "train_gpt"), "--sample", "0", *flags],
            lambda _: {"PACELINE_SECRET_FILE": secret.name})


def train_torchft(network, steps):
    learner = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torchft_learner.py")
    return tokens_per_second(network, lambda number: [sys.executable, "-W", "ignore", learner, str(number), str(steps), *WIDE[1::2]],
                             lambda number: {"HOST": network.address(number), "LIGHTHOUSE": network.address(0), "GLOO_SOCKET_IFNAME": "eth0",
                                             "OMP_NUM_THREADS": "1"})


def compare_speeds(options):
    model = [] if options.small else WIDE

    def own(steps, *flags):
        return lambda network: train_gpt(options.build, network, *model, "--max-steps", str(steps), *flags)

    ways = {"DistributedDataParallel": own(options.ddp_steps), "LowCommunication": own(options.steps, *OUTER),
            "LowCommunication, int8": own(options.steps, *OUTER, "--outer-wire", "int8")}
    if importlib.util.find_spec("torchft") and not options.small:
        ways["torchft"] = lambda network: train_torchft(network, options.steps)
    slow, free = {way: [] for way in ways}, {way: [] for way in ways}
    for _ in range(options.rounds):
        for way, measure in ways.items():
            with Hosts(gbit=0.05, delay_ms=40) as network:
                slow[way].append(measure(network))
            with Hosts() as network:
                free[way].append(measure(network))
    print("| | tokens/s over the slow link | not limited | to DistributedDataParallel | to not limited |\n|---|---|---|---|---|")
    for way in ways:
        faster = spread([a / b for a, b in zip(slow[way], slow["DistributedDataParallel"])], 1)
        print(f"| {way} | {spread(slow[way], 0)} | {spread(free[way], 0)} | {faster} | {spread([a / b for a, b in zip(slow[way], free[way])])} |")


# train_gpt's own model, with learners that take their mean after each of the first tenth of the steps.
def compare_losses(options):
    outer_flags = ["--outer", "2", "--outer-period", "50", "--outer-fragments", "4", "--outer-delay", "5", "--outer-warmup", str(options.steps // 10)]

    def loss(seed, *flags):
        done = subprocess.run([program(options.build, "apps", "paceline"), "run", "--nproc-per-node", "2", "--threads-per-rank", "1",
                               program(options.build, "examples", "train_gpt"), "--sample", "0", "--seed", str(seed), "--max-steps",
                               str(options.steps), *SCHEDULE, *flags], capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return float(re.search(r"test perplexity .*\(loss ([\d.]+)\)", done.stdout).group(1))
    ratios = []
    for seed in range(options.rounds):
        plain, outer = loss(seed), loss(seed, *outer_flags)
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
