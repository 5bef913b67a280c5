#!/usr/bin/python3
"""Computes with Python's PyTorch what parity_test.cpp compares with.

    python_reference.py samplers FOLDER  a table of DistributedSampler's indices, in FOLDER/samplers
    python_reference.py MODEL FOLDER     50 steps of DistributedDataParallel over Gloo, 2 ranks, with each optimizer

A training run writes raw little-endian files to FOLDER: images.f32 [step, rank, batch, ...], labels.i64 [step, rank, batch],
weights.f32 (all parameters in order), OPTIMIZER.losses.f32 [rank, step].
"""
import os
import sys

from reference_ranks import join_group, run_ranks, write

RANKS, STEPS, BATCH = 2, 50, 8


def write_samplers(folder):
    from torch.utils.data.distributed import DistributedSampler

    table = [(n, ranks, seed, epoch, shuffle, drop_last)
             for n in (1, 2, 3, 7, 64, 1000, 50001) for ranks in (1, 2, 3, 8) for seed in (0, 42) for epoch in (0, 3)
             for shuffle in (True, False) for drop_last in (False, True)]
    with open(os.path.join(folder, "samplers"), "w") as f:
        for n, ranks, seed, epoch, shuffle, drop_last in table:
            for rank in range(ranks) if n < 1000 else (0, ranks - 1):
                sampler = DistributedSampler(range(n), num_replicas=ranks, rank=rank, shuffle=shuffle, seed=seed,
                                             drop_last=drop_last)
                sampler.set_epoch(epoch)
                indices = list(sampler)
                print(n, ranks, seed, epoch, int(shuffle), int(drop_last), rank, len(indices), *indices, file=f)


def make_model(name):
    import torch.nn.functional as F
    from torch import nn

    class Cnn(nn.Module):
        shape = (3, 16, 16)

        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
            self.linear1, self.linear2 = nn.Linear(64 * 4 * 4, 512), nn.Linear(512, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return self.linear2(F.relu(self.linear1(x.flatten(1))))

    class Net(nn.Module):
        shape = (1, 28, 28)

        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 20, 5)
            self.linear1, self.linear2 = nn.Linear(320, 50), nn.Linear(50, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return self.linear2(F.relu(self.linear1(x.flatten(1))))

    return {"cnn": Cnn, "net": Net}[name]()


def train(name, folder):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    rank = join_group()
    torch.manual_seed(1)
    weights = {key: value.clone() for key, value in make_model(name).state_dict().items()}
    images = torch.randn(STEPS, RANKS, BATCH, *make_model(name).shape)
    labels = torch.randint(10, (STEPS, RANKS, BATCH))
    optimizers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
        "adam": lambda p: torch.optim.Adam(p, lr=1e-4, weight_decay=0.005),
    }
    for optimizer_name, make_optimizer in optimizers.items():
        module = make_model(name)
        module.load_state_dict(weights)
        model = torch.nn.parallel.DistributedDataParallel(module)
        optimizer = make_optimizer(model.parameters())
        losses = torch.empty(STEPS)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[step, rank]), labels[step, rank])
            loss.backward()
            optimizer.step()
            losses[step] = loss.item()
        all_losses = [torch.empty(STEPS) for _ in range(RANKS)]
        dist.all_gather(all_losses, losses)
        if rank == 0:
            write(torch.stack(all_losses), folder, f"{optimizer_name}.losses.f32")
    if rank == 0:
        write(images, folder, "images.f32")
        write(labels, folder, "labels.i64")
        write(torch.cat([value.flatten() for value in weights.values()]), folder, "weights.f32")
    dist.barrier()


if sys.argv[1] == "samplers":
    write_samplers(sys.argv[2])
else:
    run_ranks(RANKS, train, sys.argv[1], sys.argv[2])
