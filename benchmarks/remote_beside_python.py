#!/usr/bin/python3
"""A ResNet-18 cut between two workers, in turns with PyTorch's RPC.

    /usr/bin/python3 benchmarks/remote_beside_python.py build/release --batch 32 --micro-batches 4

The same layers, micro-batches, optimizer (SGD), LibTorch and one thread per worker: split_resnet_bench under `paceline run`, and this program over
torch.distributed.rpc, written like PyTorch's tutorial: references between the halves, distributed autograd, DistributedOptimizer. Each has one
trainer and two workers. Prints the median and the range of the rounds.
"""
import argparse
import json
import os
import sys
import threading
import time

from side_by_side import free_port, machine, program, spread, start, wait_all

LIMIT_S = 1200


def make_half(first):
    import torch
    from torch import nn
    from torchvision import models

    torch.manual_seed(1 if first else 2)
    model = models.resnet18(num_classes=10)
    if first:
        return nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), model.bn1, nn.ReLU(), model.layer1, model.layer2)
    return nn.Sequential(model.layer3, model.layer4, model.avgpool, nn.Flatten(1), model.fc)


class Half:
    def __init__(self, first):
        import torch
        torch.set_num_threads(1)
        self.layers = make_half(first)
        self.lock = threading.Lock()

    def forward(self, reference):
        features = reference.to_here()
        with self.lock:
            return self.layers(features)

    def parameters(self):
        import torch.distributed.rpc as rpc
        return [rpc.RRef(parameter) for parameter in self.layers.parameters()]


def train(options):
    import torch
    import torch.distributed.autograd as distributed_autograd
    import torch.distributed.rpc as rpc
    from torch.distributed.optim import DistributedOptimizer

    halves = [rpc.remote("worker1", Half, (True,)), rpc.remote("worker2", Half, (False,))]
    optimizer = DistributedOptimizer(torch.optim.SGD, [p for half in halves for p in half.rpc_sync().parameters()], lr=0.001)
    images = torch.randn(options.batch, 3, options.image_size, options.image_size).chunk(options.micro_batches)
    labels = torch.randint(10, (options.batch,))

    def step():
        with distributed_autograd.context() as context:
            middle = [halves[0].remote().forward(rpc.RRef(part)) for part in images]
            outputs = torch.futures.wait_all([halves[1].rpc_async().forward(part) for part in middle])
            loss = torch.nn.functional.cross_entropy(torch.cat(outputs), labels)
            distributed_autograd.backward(context, [loss])
            optimizer.step(context)

    for _ in range(2):
        step()
    begin = time.perf_counter()
    for _ in range(options.steps):
        step()
    print(json.dumps({"ms": (time.perf_counter() - begin) / options.steps * 1e3}), flush=True)


def run_rank(options):
    import torch
    import torch.distributed.rpc as rpc
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    rpc.init_rpc("trainer" if rank == 0 else f"worker{rank}", rank=rank, world_size=3,
                 rpc_backend_options=rpc.TensorPipeRpcBackendOptions(num_worker_threads=16, init_method="env://"))
    if rank == 0:
        train(options)
    rpc.shutdown()


def flags(options):
    return ["--batch", str(options.batch), "--image-size", str(options.image_size), "--micro-batches", str(options.micro_batches),
            "--steps", str(options.steps)]


def result_of(processes):
    wait_all(processes, LIMIT_S)
    return next(json.loads(line)["ms"] for line in processes[0].output.splitlines() if line.startswith("{"))


def python_step(options):
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "USE_LIBUV": "0"}
    command = [sys.executable, os.path.abspath(__file__), options.build, "--rank", *flags(options)]
    return result_of([start(command, {**env, "RANK": str(rank)}) for rank in range(3)])


def own_step(options):
    return result_of([start([program(options.build, "apps", "paceline"), "run", "--nproc-per-node", "3", "--threads-per-rank", "1",
                             program(options.build, "benchmarks", "split_resnet_bench"), *flags(options)])])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="for example build/release")
    parser.add_argument("--batch", type=int, default=32, help="images of a step")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="after two to warm up")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return run_rank(options)
    own, python = [], []
    for _ in range(options.rounds):
        own.append(own_step(options))
        python.append(python_step(options))
    rates = [b / a for a, b in zip(own, python)]
    print(f"{machine()}; batch {options.batch} of 3x{options.image_size}x{options.image_size}, {options.micro_batches} micro-batches, "
          f"{options.rounds} rounds of {options.steps} steps\n\n| | Paceline | PyTorch RPC | samples a second, ratio |\n|---|---|---|---|")
    print(f"| ms a step | {spread(own)} | {spread(python)} | {spread(rates)} |")


if __name__ == "__main__":
    main()
