#!/usr/bin/python3
"""A step of data parallelism, and the memory of a rank, in turns with Python.

    /usr/bin/python3 benchmarks/step_beside_python.py build/release --model cnn --steps 30
    /usr/bin/python3 benchmarks/step_beside_python.py build/release --model resnet --steps 8
    /usr/bin/python3 benchmarks/step_beside_python.py build/release --model resnet --image-size 224 --batch 8 --steps 8
    /usr/bin/python3 benchmarks/step_beside_python.py build/release --model efficientnet --image-size 64 --batch 16 --steps 10

Both have the same model (torchvision's), batch per rank, memory format (channels last), optimizer (Adam) and LibTorch (Debian's python3-torch is
built on the libtorch that the build uses), and one thread per rank: 2 ranks of image_step_bench under `paceline run`, and 2 ranks of this program
over Gloo; then each with one rank, which does not communicate. Prints the median and the range of the rounds.

The kernels' share: the time of Python's step on one rank within convolutions, matrix products, norms and pooling, by LibTorch's profiler; Paceline
uses the same kernels. Memory: the proportional set size (memory that ranks share is divided among them). Needs python3-torchvision.
"""
import argparse
import json
import os
import re
import statistics
import sys
import time

from side_by_side import free_port, machine, program, spread, start, wait_all

NAMES = {"cnn": "cnn", "resnet": "resnet18", "efficientnet": "efficientnet_b0"}
KERNELS = re.compile("conv|addmm|aten::mm|batch_norm|max_pool|avg_pool|mean")
LIMIT_S = 1200


def make_model(name, size, classes):
    import torch.nn.functional as F
    from torch import nn
    from torchvision import models

    class Cnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
            self.linear1, self.linear2 = nn.Linear(64 * (size // 4) ** 2, 512), nn.Linear(512, classes)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return self.linear2(F.relu(self.linear1(x.flatten(1))))

    if name == "cnn":
        return Cnn()
    if name == "efficientnet":
        return models.efficientnet_b0(num_classes=classes)
    model = models.resnet18(num_classes=classes)
    if size <= 40:  # like models::ResNet with small_images
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return model


def kernel_ms(take, steps):
    """The processor time of a step within the kernels themselves."""
    import torch
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        take(steps)
    return sum(row.self_cpu_time_total for row in profile.key_averages() if KERNELS.search(row.key)) / steps / 1e3


def memory_mb():
    with open("/proc/self/smaps_rollup") as rollup:
        return int(re.search(r"^Pss:\s+(\d+)", rollup.read(), re.M)[1]) / 1024


def run_rank(options):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = make_model(options.model, options.image_size, options.classes).to(memory_format=torch.channels_last)
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    images = torch.randn(options.batch, 3, options.image_size, options.image_size).to(memory_format=torch.channels_last)
    labels = torch.randint(options.classes, (options.batch,))

    def take(count):
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

    take(options.steps)
    dist.barrier()
    begin = time.perf_counter()
    take(options.steps)
    ms = (time.perf_counter() - begin) / options.steps * 1e3
    dist.barrier()
    result = {"ms": ms, "memory_mb": memory_mb()}
    dist.barrier()
    if dist.get_world_size() == 1:
        result["kernel_ms"] = kernel_ms(take, max(1, options.steps // 4))
    if dist.get_rank() == 0:
        print(json.dumps(result))


def flags(options, model):
    return ["--model", model, "--image-size", str(options.image_size), "--batch", str(options.batch), "--classes", str(options.classes),
            "--steps", str(options.steps)]


def last_line(processes):
    wait_all(processes, LIMIT_S)
    return json.loads(processes[0].output.splitlines()[-1])


def python_step(ranks, options):
    port = str(free_port())
    env = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
           "USE_LIBUV": "0"}
    command = [sys.executable, os.path.abspath(__file__), options.build, "--rank", *flags(options, options.model)]
    return last_line([start(command, {**env, "RANK": str(rank)}) for rank in range(ranks)])


def own_step(ranks, options):
    command = [program(options.build, "apps", "paceline"), "run", "--nproc-per-node", str(ranks), "--threads-per-rank", "1",
               program(options.build, "benchmarks", "image_step_bench"), *flags(options, NAMES[options.model])]
    return last_line([start(command)])


def compare(ranks, options):
    own, python = [], []
    for _ in range(options.rounds):
        own.append(own_step(ranks, options))
        python.append(python_step(ranks, options))
    for key, unit in (("ms", "ms a step"), ("memory_mb", "MB a rank")):
        a, b = [r[key] for r in own], [r[key] for r in python]
        print(f"| {ranks} | {unit} | {spread(a)} | {spread(b)} | {spread([x / y for x, y in zip(a, b)])} |", flush=True)
    return own, python


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="for example build/release")
    parser.add_argument("--model", default="cnn", choices=list(NAMES))
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32, help="images of a rank")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30, help="after as many to warm up")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return run_rank(options)
    print(f"{machine()}; {options.model}, batch {options.batch} of 3x{options.image_size}x{options.image_size}, {options.rounds} rounds of "
          f"{options.steps} steps\n\n| ranks | | Paceline | Python over Gloo | ratio |\n|---|---|---|---|---|")
    compare(2, options)
    own, python = compare(1, options)
    kernels = statistics.median(r["kernel_ms"] for r in python)
    step = statistics.median(r["ms"] for r in python)
    print(f"\nkernels that both share: {kernels:.2f} ms, {kernels / step:.2f} of Python's step on one rank, "
          f"{kernels / statistics.median(r['ms'] for r in own):.2f} of Paceline's")


main()
