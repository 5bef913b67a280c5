#!/usr/bin/env python3
"""A step of training over Paceline and over Gloo through Python, in turns within the same processes.

    ENVIRONMENT/bin/python benchmarks/python_in_turns.py [--what cnn|resnet|gpt] [--ranks 2] [--turns 10]

python_collectives.py starts each contestant as its users do, so seconds lie between two contestants, in which other programs come and go.
Here the same ranks have a group of each backend and change between them every half second, as `paceline bench --against gloo` does with
all-reduces (python/paceline/bench.py). A block is the median of 12 steps on the slowest rank, and a cell the median of the blocks, with the
lowest and the highest of them. A ratio is the median of the ratios to Gloo's block of the same turn.

--what cnn: DDP with the book's CNN, batch 32. resnet: DDP with a ResNet-18 of torchvision, batch 8. gpt: FSDP2 of a GPT with 3.7 million
parameters. Contestants: Paceline, whose ranks are bound to their shares of the cores as under torchrun; Gloo unbound, as its users run it;
Gloo bound; and, for DDP, a hook that sends nothing, the lower bound for every library. Also printed: how long a rank ran, and how long
it was ready and had no core, per step.
"""

import argparse
import os
import statistics
import sys

from paceline import bench

STEPS = 12  # of a block


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


def network_of(what):
    """The model, the inputs, and the classes that it learns."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if what == "gpt":
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
        tokens = torch.randint(1000, (4, 64))
        gpt = nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 1000))
        return gpt, tokens, tokens.flatten()
    images, classes = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    if what == "resnet":
        from torchvision.models import resnet18

        return resnet18(num_classes=10), images[:8], classes[:8]
    cnn = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))
    return cnn, images, classes


def send_nothing(_state, bucket):
    """A communication hook of DDP that leaves each rank its own gradients."""
    import torch

    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def step_of(what, group, sends=True):
    """A function that makes a step of training with a network of its own."""
    import torch
    from torch import nn

    model, inputs, classes = network_of(what)
    if what == "gpt":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        for part in (*model[1].layers, model):
            fully_shard(part, mesh=DeviceMesh.from_group(group, "cpu"))
    else:
        model = nn.parallel.DistributedDataParallel(model, process_group=group)
        if not sends:
            model.register_comm_hook(None, send_nothing)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs).flatten(0, -2), classes).backward()
        optimizer.step()

    return step


def rank_main(options):
    cores = bench.Cores(options.rank, options.ranks)
    groups = bench.groups_of(options.store, options.rank, options.ranks)
    paceline, gloo = groups["paceline"], groups["gloo"]
    contestants = {"Paceline": (step_of(options.what, paceline), True), "Gloo": (step_of(options.what, gloo), False)}
    if cores.can_bind:
        contestants["Gloo, bound"] = (step_of(options.what, gloo), True)
    if options.what != "gpt":
        contestants["no all-reduce"] = (step_of(options.what, paceline, sends=False), True)
    used = {name: [] for name in contestants}

    def around(name, block):
        before = times_of_threads()
        block()
        used[name].append([(after - earlier) / STEPS for after, earlier in zip(times_of_threads(), before)])

    blocks = bench.take_turns(contestants, cores, paceline, options.turns, calls=STEPS, around=around)
    if options.rank == 0:
        tell(options, blocks, used)
    bench.end_rank(groups)


def tell(options, blocks, used):
    peers = [name for name in ("Gloo", "Gloo, bound") if name in blocks]
    print(f"| {options.ranks} ranks, step of {options.what} | ms | {' | '.join('of ' + name for name in peers)} | ran, ms | had no core, ms |")
    print("|" + "---|" * (4 + len(peers)))
    for name, times in blocks.items():
        ratios = [bench.cell([mine / theirs for mine, theirs in zip(times, blocks[peer])], 2) for peer in peers]
        ran, waited = (statistics.median(one) for one in zip(*used[name]))
        print(f"| {name} | {bench.cell(times, 1)} | {' | '.join(ratios)} | {ran:.1f} | {waited:.1f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--what", choices=("cnn", "resnet", "gpt"), default="cnn")
    parser.add_argument("--ranks", type=bench.positive, default=2)
    parser.add_argument("--turns", type=bench.positive, default=10)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank_main(options)
    else:
        bench.run_ranks([os.path.abspath(__file__)], sys.argv[1:], options.ranks)


if __name__ == "__main__":
    main()
