#!/usr/bin/python3
"""The parameter server of train_ps: two trainers of one thread each on one host, with the CNN and Fashion-MNIST.

    /usr/bin/python3 benchmarks/parameter_server.py build/release                          # in turns with DDP and torch RPC
    /usr/bin/python3 benchmarks/parameter_server.py build/release --what straggler         # one trainer is four times slower
    /usr/bin/python3 benchmarks/parameter_server.py build/release --what straggler --picture loss.svg

speed: samples a second of synchronous trainers, of DistributedDataParallel (train_image), and of a server as a user of torch RPC writes it: it
collects the gradients of both trainers, takes a step, and returns the model. Its trainers compute with random images.
straggler: the test loss after each epoch by the seconds of training, and the time until each of the losses that synchronous trainers have.
"""
import argparse
import json
import os
import re
import sys
import tempfile
import time

from book_page import COLOURS
from side_by_side import free_port, machine, program, read_metrics, spread, start, wait_all

LIMIT_S = 900
BATCH = 32
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "USE_LIBUV": "0"}


# ---- a server over torch RPC ----

def make_cnn():
    from torch import nn
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10))


class Server:
    """Holds the model; what a user of torch RPC writes."""

    def __init__(self):
        import threading
        import torch
        self.model = make_cnn()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.lock, self.future, self.count = threading.Lock(), torch.futures.Future(), 0
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def weights(self):
        return [parameter.detach() for parameter in self.model.parameters()]

    def step(reference, gradients):  # run_rpc() makes it a method that replies when both trainers have called it
        import torch
        self = reference.local_value()
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients):
                parameter.grad += gradient / 2
            self.count += 1
            future = self.future
            if self.count == 2:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                self.count, self.future = 0, torch.futures.Future()
                future.set_result(self.weights())
        return future


def train_over_rpc(reference, steps):
    import torch
    import torch.distributed.rpc as rpc
    model, images = make_cnn(), torch.randn(BATCH, 1, 28, 28)
    labels = torch.randint(10, (BATCH,))
    weights = reference.rpc_sync().weights()
    for _ in range(steps):
        with torch.no_grad():
            for own, given in zip(model.parameters(), weights):
                own.copy_(given)
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        weights = rpc.rpc_sync(reference.owner(), Server.step, args=(reference, gradients))


def run_rpc(steps):
    import torch
    import torch.distributed.rpc as rpc
    torch.set_num_threads(1)
    Server.step = staticmethod(rpc.functions.async_execution(Server.step))
    rank = int(os.environ["RANK"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=3)
    if rank == 0:
        reference = rpc.RRef(Server())
        for count in (10, steps):
            begin = time.perf_counter()
            for future in [rpc.rpc_async(f"worker{trainer}", train_over_rpc, args=(reference, count)) for trainer in (1, 2)]:
                future.wait()
        print(json.dumps({"rate": 2 * BATCH * steps / (time.perf_counter() - begin)}), flush=True)
    rpc.shutdown()


def rpc_rate(steps):
    env = {**THREADS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, os.path.abspath(__file__), "-", "--part", "rpc", "--steps", str(steps)]
    processes = [start(command, {**env, "RANK": str(rank)}) for rank in range(3)]
    wait_all(processes, LIMIT_S)
    return next(json.loads(line) for line in processes[0].output.splitlines() if line.startswith("{"))["rate"]


# ---- the programs of this project ----

def run_own(build, name, flags):
    process = start([program(build, "apps", "paceline"), "run", "--nproc-per-node", "2", "--threads-per-rank", "1",
                     program(build, "examples", name), "--batch-size", str(BATCH), "--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9", *flags],
                    {"LD_LIBRARY_PATH": ""})
    wait_all([process], LIMIT_S)
    return process.output


def own_rate(build, name, steps):
    output = run_own(build, name, ["--epochs", "1", "--max-steps", str(steps)])
    return float(re.search(r"throughput +([\d.]+) (?:samples|images)/s", output).group(1))


def compare_speed(options):
    table, ddp, rpc = [], [], []
    for _ in range(options.rounds):
        table.append(own_rate(options.build, "train_ps", options.steps))
        ddp.append(own_rate(options.build, "train_image", options.steps))
        rpc.append(rpc_rate(options.steps))
    print("| | samples/s | synchronous table to it |\n|---|---|---|")
    print(f"| synchronous table | {spread(table, 0)} | |")
    print(f"| DistributedDataParallel | {spread(ddp, 0)} | {spread([a / b for a, b in zip(table, ddp)])} |")
    print(f"| server over torch RPC | {spread(rpc, 0)} | {spread([a / b for a, b in zip(table, rpc)])} |")


# ---- a slow trainer ----

MODES = ("synchronous", "bounded:4", "asynchronous")


def loss_curve(build, mode, epochs, seed):
    """The seconds and the test losses after each epoch."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        run_own(build, "train_ps", ["--consistency", mode, "--slow-down", "3", "--epochs", str(epochs), "--seed", str(seed), "--metrics", metrics])
        return [(record["seconds"], record["loss"]) for record in read_metrics(metrics)["epoch"]]


def seconds_until(curve, loss):
    """By a straight line between two epochs; the first epoch counts as a whole. None if the loss is not reached."""
    for i, (seconds, reached) in enumerate(curve):
        if reached <= loss:
            if i == 0:
                return seconds
            before, above = curve[i - 1]
            return before + (seconds - before) * (above - loss) / (above - reached)
    return None


def compare_straggler(options):
    """Each time until the test loss that synchronous trainers have after an epoch, relative to theirs."""
    ratios, curves = {}, {}
    for seed in range(options.rounds):
        # The others may need more samples for the same loss, in less time.
        curves = {mode: loss_curve(options.build, mode, options.epochs + (mode != "synchronous"), seed) for mode in MODES}
        for mode, curve in curves.items():
            print(f"seed {seed}: {mode}: " + ", ".join(f"{loss:.4f} after {seconds:.0f} s" for seconds, loss in curve), flush=True)
            for epoch, (wanted, aim) in enumerate(curves["synchronous"], 1):
                seconds = seconds_until(curve, aim)
                ratios.setdefault((epoch, mode), []).append(seconds / wanted if seconds else float("inf"))
    print("\n| loss of synchronous trainers after | " + " | ".join(MODES) + " |\n|---|" + "---|" * len(MODES))
    for epoch in range(1, options.epochs + 1):
        print(f"| epoch {epoch} | " + " | ".join(spread(ratios[epoch, mode]) for mode in MODES) + " |")
    if options.picture:
        with open(options.picture, "w") as file:
            file.write(picture(curves))


def picture(curves, width=640, height=320, margin=48):
    """The losses of the last round by seconds, as SVG."""
    points = [point for curve in curves.values() for point in curve]
    longest, low, high = max(x for x, _ in points), min(y for _, y in points), max(y for _, y in points)

    def at(seconds, loss):
        return (margin + seconds / longest * (width - 2 * margin), margin + (high - loss) / (high - low) * (height - 2 * margin))

    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height + 20 * len(curves)}' font-family='sans-serif' font-size='13'>",
             f"<rect width='{width}' height='{height + 20 * len(curves)}' fill='white'/>",
             f"<path d='M{margin} {margin}V{height - margin}H{width - margin}' fill='none' stroke='black'/>",
             f"<text x='{margin}' y='{margin - 12}'>test loss, from {high:.2f} to {low:.2f}</text>",
             f"<text x='{width - margin}' y='{height - margin + 20}' text-anchor='end'>{longest:.0f} s of training; one of two trainers is four "
             "times slower</text>"]
    for number, (mode, curve) in enumerate(curves.items()):
        places = [at(*point) for point in curve]
        parts.append(f"<polyline fill='none' stroke='{COLOURS[number]}' stroke-width='2' points='" + " ".join(f"{x:.1f},{y:.1f}" for x, y in places) + "'/>")
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{COLOURS[number]}'/>" for x, y in places]
        parts.append(f"<text x='{margin}' y='{height + 20 * number}' fill='{COLOURS[number]}'>{mode}</text>")
    return "\n".join(parts) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="for example build/release")
    parser.add_argument("--what", choices=["speed", "straggler"], default="speed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="of each trainer, for the speed")
    parser.add_argument("--epochs", type=int, default=4, help="with a slow trainer")
    parser.add_argument("--picture", help="write the losses of the last round as SVG")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return run_rpc(options.steps)
    print(f"{machine()}; {options.rounds} rounds\n", flush=True)
    (compare_speed if options.what == "speed" else compare_straggler)(options)


if __name__ == "__main__":
    main()
