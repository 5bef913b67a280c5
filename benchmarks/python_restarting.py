#!/usr/bin/python3
"""The job of python_ddp.py, with checkpoints written by hand, as torchrun's users do it, so that it survives restarts.

Rank 0 saves with torch.save every few steps, into a file that is then renamed to the checkpoint's name, and every start loads it. It continues
with the remaining samples of the epoch, which a plain DistributedSampler cannot do: it would begin the epoch again. Each rank reports
its steps as Paceline's ranks do (telemetry/FORMAT.md), in PACELINE_FLIGHT_DIR. At the end rank 0 writes the digest of the weights to
DIR/weights.
"""
import argparse
import hashlib
import itertools
import math
import mmap
import os
import struct

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from python_ddp import Cifar10, Cnn


class Rest(DistributedSampler):
    """This rank's part of the epoch without its first `seen` samples."""
    seen = 0

    def __iter__(self):
        return itertools.islice(super().__iter__(), self.seen, None)


class StepGauge:
    def __init__(self, rank):
        path = os.path.join(os.environ["PACELINE_FLIGHT_DIR"], f"rank-{rank:03}.steps")
        with open(f"{path}.{os.getpid()}", "w+b") as file:
            file.write(struct.pack("<8sQ", b"PLSTEPS1", os.getpid()).ljust(72, b"\0"))
            file.flush()
            self.words = mmap.mmap(file.fileno(), 72)
        os.replace(f"{path}.{os.getpid()}", path)

    def show(self, steps):
        struct.pack_into("<Q", self.words, 16, steps)


def batches_from(step, loader, sampler):
    per_epoch = math.ceil(sampler.num_samples / loader.batch_size)
    epoch, done = divmod(step, per_epoch)
    sampler.seen = done * loader.batch_size
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        sampler.seen = 0
        epoch += 1


def save(path, step, model, optimizer):
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
    os.replace(path + ".new", path)


def digest(model):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--dir", required=True, help="of the checkpoint")
    parser.add_argument("--save-every", type=int, required=True, help="steps")
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    os.environ.setdefault("USE_LIBUV", "0")  # Debian 13's PyTorch is built without it
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    sampler = Rest(Cifar10(options.data_dir))
    loader = DataLoader(sampler.dataset, batch_size=32, sampler=sampler)
    model = Cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, weight_decay=0.005)
    path = os.path.join(options.dir, "checkpoint.pt")
    first = 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    parallel = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()

    gauge = StepGauge(dist.get_rank())
    for step, (images, labels) in zip(range(first, options.steps), batches_from(first, loader, sampler)):
        optimizer.zero_grad()
        criterion(parallel(images), labels).backward()
        optimizer.step()
        gauge.show(step + 1 - first)
        if (step + 1) % options.save_every == 0 and dist.get_rank() == 0:
            save(path, step + 1, model, optimizer)
    if dist.get_rank() == 0:
        with open(os.path.join(options.dir, "weights"), "w") as file:
            file.write(digest(model))


main()
