#!/usr/bin/python3
"""shard_beside_python.py BUILD [--ranks N] [--rounds N] [--steps N]: fully_shard() in turns with PyTorch's FSDP2 and DDP.

A GPT of 31 million parameters (shard_bench.cpp), 2 sequences of 128 bytes a rank, Adam, one thread a rank, all on this machine. Start it with
the Python of a PyTorch 2.x whose LibTorch BUILD uses. Of each round, and in another order every time: stages 0 to 3 under `paceline run`, and
FSDP2 (each block a unit) and DDP over Gloo in Python. Prints milliseconds a step and the memory of all ranks together (PSS) after 2 x STEPS steps:
median and range.
"""
import argparse
import os
import re
import socket
import statistics
import subprocess
import sys
import time

SEQUENCES, TOKENS = 2, 128
LAYERS, WIDTH, HEADS, VOCABULARY = 10, 512, 8, 256
OWN = ("stage 0: DistributedDataParallel", "stage 1", "stage 2", "stage 3")
PYTHON = ("fsdp2", "ddp")


def make_model():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            n, t, _ = x.shape
            q, k, v = (part.view(n, t, HEADS, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(WIDTH, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.projection(y.transpose(1, 2).reshape(n, t, WIDTH))
            return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
            self.h = nn.ModuleList(Block() for _ in range(LAYERS))
            self.ln_f = nn.LayerNorm(WIDTH)

        def forward(self, tokens):
            x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
            for block in self.h:
                x = block(x)
            return self.ln_f(x) @ self.wte.weight.t()

    return Gpt()


def pss_mb():
    with open("/proc/self/smaps_rollup") as rollup:
        return int(re.search(r"^Pss: +(\d+)", rollup.read(), re.M)[1]) / 1024


def run_rank(kind, steps):
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = make_model()
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (SEQUENCES, TOKENS + 1))

    def take():
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()

    take()
    dist.barrier()
    begin = time.perf_counter()
    take()
    dist.barrier()
    milliseconds = (time.perf_counter() - begin) / steps * 1e3
    memory = torch.tensor(pss_mb())
    dist.all_reduce(memory)
    if dist.get_rank() == 0:
        print(f"ms a step: {milliseconds:.4f}\nPSS of all ranks, MB: {memory.item():.2f}")


def read(output):
    return float(re.search(r"ms a step: ([\d.]+)", output)[1]), float(re.search(r"MB: ([\d.]+)", output)[1])


def python_run(kind, arguments):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(arguments.ranks):
        env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(arguments.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                   OMP_NUM_THREADS="1")
        processes.append(subprocess.Popen([sys.executable, "-W", "ignore", __file__, "--rank", kind, "--steps", str(arguments.steps)],
                                          env=env, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=900)[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"a rank of Python's {kind} failed")
    return read(outputs[0])


def own_run(stage, arguments):
    command = [f"{arguments.build}/apps/paceline", "run", "--nproc-per-node", str(arguments.ranks), "--threads-per-rank", "1",
               f"{arguments.build}/benchmarks/shard_bench", "--stage", str(stage), "--steps", str(arguments.steps)]
    return read(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=900).stdout)


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", nargs="?")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rank", choices=PYTHON, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        return run_rank(arguments.rank, arguments.steps)
    runs = {name: (lambda stage=stage: own_run(stage, arguments)) for stage, name in enumerate(OWN)}
    runs |= {"Python, " + kind: (lambda kind=kind: python_run(kind, arguments)) for kind in PYTHON}
    got = {name: [] for name in runs}
    for number in range(arguments.rounds):
        names = list(runs)
        for name in names[number % len(names):] + names[:number % len(names)]:
            got[name].append(runs[name]())
    print(f"{arguments.ranks} ranks, {arguments.rounds} rounds\n")
    print("| | ms a step | to FSDP2's | to DDP's | MB of all ranks | to FSDP2's | to DDP's |\n|---|---|---|---|---|---|---|")
    for name, values in got.items():
        columns = []
        for what in (0, 1):
            own = [value[what] for value in values]
            columns.append(spread(own, 0 if what else 2))
            for kind in PYTHON:
                columns.append(spread([a / b[what] for a, b in zip(own, got["Python, " + kind])]))
        print(f"| {name} | {' | '.join(columns)} |", flush=True)


main()
