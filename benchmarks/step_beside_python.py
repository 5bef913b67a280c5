#!/usr/bin/python3
"""step_beside_python.py BUILD [--model cnn|resnet] [--rounds N] [--steps N]: a step of data parallelism, in turns with Python's.

The same model, batch (32 a rank of 3x32x32, channels last), optimizer (Adam), LibTorch (Debian's python3-torch is built on the libtorch that BUILD uses)
and one thread a rank: 2 ranks of data_parallel_bench under `paceline run`, and 2 of this program over Gloo; then each with one rank, which
communicates with nobody: the floor that both share. Prints milliseconds a step: the median and the range of the rounds.
"""
import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import time

BATCH = 32


def make_model(name):
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Cnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
            self.linear1, self.linear2 = nn.Linear(4096, 512), nn.Linear(512, 10)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return self.linear2(F.relu(self.linear1(x.flatten(1))))

    class Block(nn.Module):
        def __init__(self, channels, width, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
            self.downsample = None
            if stride != 1 or channels != width:
                self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x):
            out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
            return F.relu(out + (x if self.downsample is None else self.downsample(x)))

    class ResNet18(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
            blocks, channels = [], 64
            for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
                blocks += [Block(channels, width, stride), Block(width, width, 1)]
                channels = width
            self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(512, 10)

        def forward(self, x):
            x = self.blocks(F.relu(self.bn1(self.conv1(x))))
            return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))

    return {"cnn": Cnn, "resnet": ResNet18}[name]()


def run_rank(model_name, steps):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(make_model(model_name))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    images, labels = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last), torch.randint(10, (BATCH,))

    def take(count):
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

    take(steps)
    dist.barrier()
    begin = time.perf_counter()
    take(steps)
    if dist.get_rank() == 0:
        print(f"ms a step: {(time.perf_counter() - begin) / steps * 1e3:.4f}")


def python_step(ranks, arguments):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   OMP_NUM_THREADS="1", USE_LIBUV="0")
        processes.append(subprocess.Popen([sys.executable, __file__, "--rank", "--model", arguments.model, "--steps", str(arguments.steps)],
                                          env=env, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("a rank of Python failed")
    return float(re.search(r"ms a step: ([\d.]+)", outputs[0])[1])


def own_step(ranks, arguments):
    command = [f"{arguments.build}/apps/paceline", "run", "--nproc-per-node", str(ranks), "--threads-per-rank", "1",
               f"{arguments.build}/benchmarks/data_parallel_bench", "--only-default", "--rounds", "1", "--steps", str(arguments.steps),
               "--model", arguments.model]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout
    return float(re.search(r"^\| both, the default \| ([\d.]+)", output, re.M)[1])


def spread(values):
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?")
    parser.add_argument("--model", default="cnn", choices=["cnn", "resnet"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return run_rank(arguments.model, arguments.steps)
    print("| ranks | Paceline, ms a step | Python over Gloo | ratio |\n|---|---|---|---|")
    for ranks in (2, 1):
        own, python = [], []
        for _ in range(arguments.rounds):
            own.append(own_step(ranks, arguments))
            python.append(python_step(ranks, arguments))
        print(f"| {ranks} | {spread(own)} | {spread(python)} | {spread([a / b for a, b in zip(own, python)])} |", flush=True)


main()
