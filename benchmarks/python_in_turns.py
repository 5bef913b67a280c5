#!/usr/bin/env python3
"""Paceline and Gloo through Python, in turns within the same processes.

    ENVIRONMENT/bin/python benchmarks/python_in_turns.py [--what step|reduction] [--ranks 2] [--blocks 10] [--size 32 --type bfloat16]

python_collectives.py starts each contestant as its users do, so seconds lie between two contestants, in which other programs come and go.
Here the same ranks have a group of each backend and change between them every half second. A block is 12 calls of one contestant, and a
cell the median of the blocks' medians, with the lowest and the highest of them. A ratio is the median of the blocks' ratios to Gloo's
block of the same turn.

--what step: a step of DDP with the book's CNN, batch 32 (median of a block's steps). Contestants: Paceline, whose ranks are bound to their
shares of the cores as under torchrun; Gloo unbound, as its users run it; Gloo bound; and DDP with a hook that sends nothing, the lower
bound for every library. --what reduction: an all-reduce of --size MB of --type, by the first three. With fewer
cores than ranks no rank is bound. Also printed: how long a rank ran, and how long it was ready and had no core, per call.
"""

import argparse
import datetime
import os
import statistics
import subprocess
import sys
import tempfile
import time

CALLS = 12  # of a block
ALL_CORES = os.sched_getaffinity(0)


def bind(is_bound, cores):
    """Binds every thread of the process: to `cores`, or to all that the process was given."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores if is_bound else ALL_CORES)
        except OSError:
            pass  # the thread has ended meanwhile


def times_of_threads():
    """Milliseconds for which the threads of this process ran, and for which they were ready and had no core."""
    ran = waited = 0
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
                nanoseconds = file.read().split()
        except OSError:
            continue
        ran, waited = ran + int(nanoseconds[0]), waited + int(nanoseconds[1])
    return ran / 1e6, waited / 1e6


def step_of(group, sends=True):
    """A function that makes a step of training with a network of its own."""
    import torch
    from torch import nn

    def send_nothing(_state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    torch.manual_seed(0)
    cnn = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))
    images, classes = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    model = nn.parallel.DistributedDataParallel(cnn, process_group=group)
    if not sends:
        model.register_comm_hook(None, send_nothing)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()
        optimizer.step()

    return step


def rank_main(options):
    import torch
    import torch.distributed as dist

    import paceline.torch  # noqa: F401: registers the backend with torch before 2.14

    ranks, rank = options.ranks, options.rank
    torch.set_num_threads(1)
    store = dist.FileStore(options.store, ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    gloo, paceline = dist.group.WORLD, dist.new_group(backend="paceline")
    cores = sorted(ALL_CORES)
    can_bind = len(cores) >= ranks
    own = set(cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]) if can_bind else ALL_CORES
    if options.what == "step":
        contestants = {"Paceline": (step_of(paceline), True), "Gloo": (step_of(gloo), False), "Gloo, bound": (step_of(gloo), True),
                       "no all-reduce": (step_of(paceline, sends=False), True)}
    else:
        dtype = getattr(torch, options.type)
        tensor = torch.zeros(int(options.size * (1 << 20)) // dtype.itemsize, dtype=dtype)
        contestants = {"Paceline": (lambda: dist.all_reduce(tensor, group=paceline), True),
                       "Gloo": (lambda: dist.all_reduce(tensor, group=gloo), False),
                       "Gloo, bound": (lambda: dist.all_reduce(tensor, group=gloo), True)}
        if not can_bind:
            del contestants["Gloo, bound"]
    blocks = {name: [] for name in contestants}
    for turn in range(-1, options.blocks):  # the first turn warms up
        for name, (action, is_bound) in contestants.items():
            bind(is_bound and can_bind, own)
            dist.barrier(paceline)
            action()
            before, taken = times_of_threads(), []
            for _ in range(CALLS):
                begin = time.perf_counter()
                action()
                taken.append((time.perf_counter() - begin) * 1e3)
            ran, waited = (after - earlier for after, earlier in zip(times_of_threads(), before))
            if turn >= 0:
                blocks[name].append((statistics.median(taken), ran / CALLS, waited / CALLS))
    if rank == 0:
        tell(options, blocks)
    dist.barrier(paceline)
    dist.destroy_process_group()


def tell(options, blocks):
    what = "step of DDP, CNN" if options.what == "step" else f"all-reduce, {options.type}, {options.size:g} MB"
    print(f"| {options.ranks} ranks, {what} | ms | of Gloo's time | ran, ms | had no core, ms |\n|---|---|---|---|---|")
    for name, of_one in blocks.items():
        times, ran, waited = zip(*of_one)
        ratio = statistics.median(mine / theirs[0] for mine, theirs in zip(times, blocks["Gloo"]))
        print(f"| {name} | {statistics.median(times):.1f} [{min(times):.1f}, {max(times):.1f}] | {ratio:.2f} "
              f"| {statistics.median(ran):.1f} | {statistics.median(waited):.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--what", choices=("step", "reduction"), default="step")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--size", type=float, default=32)
    parser.add_argument("--type", default="bfloat16")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PACELINE_BIND": "0"}
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--store", f"{folder}/store", "--rank"]
        ranks = [subprocess.Popen([*command, str(rank)], env=variables) for rank in range(options.ranks)]
        try:
            codes = [rank.wait(300) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    if any(codes):
        raise SystemExit(f"the ranks ended with {codes}")


if __name__ == "__main__":
    main()
