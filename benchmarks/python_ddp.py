#!/usr/bin/python3
"""The book's job in Python, as its readers write it: a small CNN on CIFAR-10, Adam, DistributedDataParallel over Gloo.

One process per rank; the program that starts it (against_python) sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0
writes a JSON object to --metrics: seconds of the measured steps, seconds by phase, and the loss of its own batch at every step,
including the warm-up; with --evaluate also the final accuracy.
"""
import argparse
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Cifar10(Dataset):
    """The binary layout: records of one label byte and 3,072 pixel bytes. An item is transformed when it is read, as with torchvision's
    ToTensor and Normalize."""

    def __init__(self, folder, names=tuple(f"data_batch_{i}.bin" for i in range(1, 6))):
        files = [os.path.join(folder, name) for name in names]
        records = np.concatenate([np.fromfile(f, dtype=np.uint8).reshape(-1, 3073) for f in files])
        self.labels = torch.from_numpy(records[:, 0].astype(np.int64))
        self.images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
        self.mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
        self.std = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index].to(torch.float32).div_(255)
        return image.sub_(self.mean).div_(self.std), self.labels[index]


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.linear1 = nn.Linear(4096, 512)
        self.linear2 = nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.linear2(F.relu(self.linear1(x.flatten(1))))


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def test_accuracy(model, folder):
    """The accuracy on the whole test set; every rank has the same model."""
    dataset, right = Cifar10(folder, ("test_batch.bin",)), 0
    with torch.no_grad():
        for images, labels in DataLoader(dataset, batch_size=250):
            right += (model(images).argmax(1) == labels).sum().item()
    return right / len(dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--steps", type=int, default=200, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=20, help="steps before them")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--weight-decay", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true", help="the accuracy on the test set, too")
    parser.add_argument("--metrics", required=True)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    os.environ.setdefault("USE_LIBUV", "0")  # Debian 13's PyTorch is built without it
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed + dist.get_rank())
    dataset = Cifar10(options.data_dir)
    sampler = DistributedSampler(dataset, seed=options.seed)
    batches = endless(DataLoader(dataset, batch_size=options.batch_size, sampler=sampler), sampler)
    # The loader draws a seed for its workers from the global generator; the model must not depend on the moment.
    torch.manual_seed(options.seed + dist.get_rank())
    model = nn.parallel.DistributedDataParallel(Cnn())
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)

    phases = dict.fromkeys(["data", "forward", "backward", "optimizer"], 0.0)
    losses = []
    for step in range(options.warm_up + options.steps):
        if step == options.warm_up:
            phases = dict.fromkeys(phases, 0.0)
            begin = time.perf_counter()
        mark = time.perf_counter()

        def lap(phase):
            nonlocal mark
            now = time.perf_counter()
            phases[phase] += now - mark
            mark = now

        images, labels = next(batches)
        lap("data")
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        lap("forward")
        loss.backward()
        lap("backward")
        optimizer.step()
        lap("optimizer")
        losses.append(loss.item())
    seconds = time.perf_counter() - begin
    if dist.get_rank() == 0:
        result = {"seconds": seconds, "phases": phases, "losses": losses}
        if options.evaluate:
            result["accuracy"] = test_accuracy(model.module, options.data_dir)
        with open(options.metrics, "w") as f:
            json.dump(result, f)


if __name__ == "__main__":
    main()
