#!/usr/bin/env python3
"""All-reduce and training steps through Python: Paceline beside Gloo, in turns, with the torch of the interpreter that runs this.

    ENVIRONMENT/bin/python benchmarks/python_collectives.py [--ranks 2] [--rounds 3] [--training]

Each round runs every contestant once: "paceline" (which binds its ranks, as under torchrun), "gloo" as its users run it, not bound, and
"gloo bound", each rank on its share of the cores. Prints the best time of all rounds in microseconds and how many times as long
Gloo takes. --training: steps of DDP with a small CNN and of FSDP2 with a GPT instead. Needs an otherwise idle machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

CONTESTANTS = ("paceline", "gloo", "gloo bound")
SIZES = {"8 KB": 8 << 10, "64 KB": 64 << 10, "32 MB": 32 << 20}


def best_of(action, seconds, at_most=2000):
    """Microseconds of the fastest call within the time. Collective: all ranks make as many calls."""
    import torch
    import torch.distributed as dist

    action()
    begin = time.perf_counter()
    action()
    count = torch.tensor([min(at_most, max(3, int(seconds / (time.perf_counter() - begin + 1e-6))))])
    dist.broadcast(count, 0)
    best = float("inf")
    for _ in range(int(count)):
        begin = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begin)
    return best * 1e6


def reductions():
    import torch
    import torch.distributed as dist

    times = {}
    for kind in ("float32", "bfloat16"):
        for name, size in SIZES.items():
            tensor = torch.zeros(size // (4 if kind == "float32" else 2), dtype=getattr(torch, kind))
            times[f"all-reduce {kind} {name}"] = best_of(lambda tensor=tensor: dist.all_reduce(tensor), 1.0)
    return times


def training():
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def step_of(model, inputs, classes, optimizer):
        def step():
            optimizer.zero_grad()
            output = model(inputs)
            nn.functional.cross_entropy(output.flatten(0, -2), classes).backward()
            optimizer.step()

        return step

    torch.manual_seed(0)
    cnn = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10))
    ddp = nn.parallel.DistributedDataParallel(cnn)
    times = {"DDP step, CNN": best_of(step_of(ddp, torch.randn(16, 1, 28, 28), torch.randint(10, (16,)),
                                              torch.optim.SGD(ddp.parameters(), lr=0.01)), 6.0)}
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
    gpt = nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 1000))
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for part in (*gpt[1].layers, gpt):
        fully_shard(part, mesh=mesh)
    tokens = torch.randint(1000, (4, 64))
    times["FSDP2 step, GPT"] = best_of(step_of(gpt, tokens, tokens.flatten(), torch.optim.SGD(gpt.parameters(), lr=0.01)), 6.0)
    return times


def rank_main(contestant, rank, ranks, store, is_training):
    if contestant == "gloo bound":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks] or cores[rank % len(cores) :][:1])
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(contestant.split()[0], store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    times = training() if is_training else reductions()
    if rank == 0:
        print(json.dumps(times), flush=True)
    dist.destroy_process_group()


def run(contestant, options):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--rank-of", contestant, "--ranks", str(options.ranks), "--store", f"{folder}/store"]
        command += ["--training"] if options.training else []
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(options.ranks)]
        outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            raise SystemExit(f"{contestant}: a rank failed")
        return json.loads(outputs[0].splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(options.rank_of, options.rank, options.ranks, options.store, options.training)
        return
    best = {contestant: {} for contestant in CONTESTANTS}
    for _ in range(options.rounds):
        for contestant in CONTESTANTS:
            for name, microseconds in run(contestant, options).items():
                best[contestant][name] = min(microseconds, best[contestant].get(name, float("inf")))
    print(f"| {options.ranks} ranks, us | {' | '.join(CONTESTANTS)} | gloo / paceline | gloo bound / paceline |")
    print("|---|" + "---|" * (len(CONTESTANTS) + 2))
    for name, mine in best["paceline"].items():
        columns = [f"{best[contestant][name]:.0f}" for contestant in CONTESTANTS]
        columns += [f"{best[contestant][name] / mine:.1f}" for contestant in CONTESTANTS[1:]]
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
