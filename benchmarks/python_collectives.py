#!/usr/bin/env python3
"""Paceline beside Gloo through Python, in turns, with the torch of the interpreter that runs this.

    ENVIRONMENT/bin/python benchmarks/python_collectives.py [--what reductions|training|generation|calls] [--ranks 2] [--rounds 3]

Contestants: Paceline under `paceline run`, Paceline under torchrun, Gloo under torchrun as its users run it ("gloo"), and Gloo with each rank
on its share of the cores ("gloo bound"). "--what training" also runs "no all-reduce": Paceline's groups, but DDP sends nothing, so that no
library can have a shorter step. A round runs each of them once. A cell is the median of the rounds, of medians over the calls of
a round, with the lowest and the highest of them; the last columns say how many times as long Gloo takes as Paceline under torchrun, with
ratios of one round each.

--what reductions: all-reduce of three sizes and two types. training: steps of DDP with a small CNN and a ResNet-18 (if torchvision is
installed), and of FSDP2 with a GPT. generation: a token of a Llama of transformers, random weights, tp_plan="auto". calls: what one call
costs a single rank, and what an import takes. Needs an otherwise idle machine.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WORKLOADS = ("reductions", "training", "generation", "calls")
SIZES = {"8 KB": 8 << 10, "64 KB": 64 << 10, "32 MB": 32 << 20}
CONTESTANTS = ("paceline run", "paceline", "gloo", "gloo bound")
NOTHING = "no all-reduce"


def median_of(action, seconds, at_most=2000):
    """The median over the calls within the time, in microseconds. Collective: all ranks make as many calls."""
    import torch
    import torch.distributed as dist

    action()
    begin = time.perf_counter()
    action()
    count = torch.tensor([min(at_most, max(3, int(seconds / (time.perf_counter() - begin + 1e-6))))])
    dist.broadcast(count, 0)
    times = []
    for _ in range(int(count)):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def reductions():
    import torch
    import torch.distributed as dist

    times = {}
    for kind in ("float32", "bfloat16"):
        for name, size in SIZES.items():
            tensor = torch.zeros(size // (4 if kind == "float32" else 2), dtype=getattr(torch, kind))
            times[f"all-reduce {kind} {name}"] = median_of(lambda tensor=tensor: dist.all_reduce(tensor), 0.7)
    return times


def send_nothing(_state, bucket):
    """A communication hook of DDP that leaves each rank its own gradients."""
    import torch

    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def training(contestant):
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def step_of(model, inputs, classes):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step():
            optimizer.zero_grad()
            output = model(inputs)
            nn.functional.cross_entropy(output.flatten(0, -2), classes).backward()
            optimizer.step()

        return step

    def in_parallel(model):
        model = nn.parallel.DistributedDataParallel(model)
        if contestant == NOTHING:
            model.register_comm_hook(None, send_nothing)
        return model

    torch.manual_seed(0)
    # The network of the book's chapter: 2.1 million parameters.
    cnn = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))
    images, classes = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    times = {"DDP step, CNN": median_of(step_of(in_parallel(cnn), images, classes), 4.0)}
    try:
        from torchvision.models import resnet18
    except ImportError:
        resnet18 = None
    if resnet18 is not None:
        step = step_of(in_parallel(resnet18(num_classes=10)), images[:8], classes[:8])
        times["DDP step, ResNet-18"] = median_of(step, 4.0)
    if contestant == NOTHING:
        return times
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
    gpt = nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(256, 1000))
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for part in (*gpt[1].layers, gpt):
        fully_shard(part, mesh=mesh)
    tokens = torch.randint(1000, (4, 64))
    times["FSDP2 step, GPT"] = median_of(step_of(gpt, tokens, tokens.flatten()), 4.0)
    return times


def generation(folder):
    """`folder`: where rank 0 leaves the model for the others."""
    import torch
    import torch.distributed as dist
    from transformers import LlamaConfig, LlamaForCausalLM

    if dist.get_rank() == 0:
        torch.manual_seed(0)
        config = LlamaConfig(hidden_size=256, intermediate_size=768, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=8,
                             vocab_size=2048, max_position_embeddings=256)
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    dist.barrier()
    model = LlamaForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.bfloat16)
    prompt = torch.arange(16)[None]

    def generate(count):
        begin = time.perf_counter()
        model.generate(prompt, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
        return time.perf_counter() - begin

    generate(4)
    return {"tensor-parallel generation, a token": generate(24) / 24 * 1e6}


def calls():
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(1)
    group = dist.distributed_c10d._get_default_group()
    times = {"all_reduce of one element, one rank": median_of(lambda: dist.all_reduce(tensor), 1.0, 20000)}
    times["the same, async_op=True and wait()"] = median_of(lambda: dist.all_reduce(tensor, async_op=True).wait(), 1.0, 20000)
    backend = group._get_backend(torch.device("cpu"))
    if hasattr(backend, "_group"):
        from paceline import _core

        place = (tensor.data_ptr(), 1, tensor.data_ptr(), 1)
        times["of that, the engine's call"] = median_of(lambda: backend._group.run(_core.OPS["all_reduce"], _core.DTYPES["float32"], *place),
                                                        1.0, 20000)
    return times


def imports():
    program = "import {0}; import time; begin = time.perf_counter(); import {1}; print(time.perf_counter() - begin)"
    times = {}
    for before, module in (("sys", "paceline"), ("torch.distributed", "paceline.torch"), ("numpy", "paceline.numpy")):
        command = [sys.executable, "-c", program.format(before, module)]
        taken = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5)]
        times[f"import {module} after {before}"] = statistics.median(taken) * 1e6
    return times


def rank_main(contestant, what, folder):
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if contestant == "gloo bound":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks] or cores[rank % len(cores) :][:1])
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("paceline" if contestant == NOTHING else contestant.split()[0])
    if what == "generation":
        times = generation(folder)
    elif what == "training":
        times = training(contestant)
    else:
        times = reductions() if what == "reductions" else calls()
    if rank == 0:
        pathlib.Path(folder, "times.json").write_text(json.dumps(times), encoding="utf-8")
    dist.destroy_process_group()


def run(contestant, options):
    with tempfile.TemporaryDirectory() as folder:
        if contestant == "paceline run":
            launcher, interpreter = [str(pathlib.Path(sys.executable).with_name("paceline")), "run"], [sys.executable]
        else:
            launcher, interpreter = [sys.executable, "-m", "torch.distributed.run", "--standalone"], []
        command = [*launcher, "--nproc-per-node", str(options.ranks), *interpreter, os.path.abspath(__file__)]
        command += ["--rank-of", contestant, "--what", options.what, "--folder", folder]
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=400, env={**os.environ, "OMP_NUM_THREADS": "1"})
        times = pathlib.Path(folder, "times.json")
        if not times.exists():  # Gloo of torch 2.15 may abort when everything is done
            raise SystemExit(f"{contestant}: failed\n{outcome.stderr[-3000:]}")
        return json.loads(times.read_text(encoding="utf-8"))


def cell(values):
    middle, digits = statistics.median(values), 0 if max(values) >= 100 else 1 if max(values) >= 10 else 2
    return f"{middle:.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--what", choices=WORKLOADS, default="reductions")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        rank_main(options.rank_of, options.what, options.folder)
        return
    if options.what == "calls":
        options.ranks = 1
    contestants = CONTESTANTS if options.ranks > 1 else ("paceline", "gloo")
    if options.what == "training":
        contestants = (*contestants, NOTHING)
    rounds = {contestant: [] for contestant in contestants}
    for _ in range(options.rounds):
        for contestant in contestants:
            rounds[contestant].append(run(contestant, options))
    theirs = [contestant for contestant in contestants if contestant.startswith("gloo") or contestant == NOTHING]
    print(f"| {options.ranks} rank{'s' * (options.ranks > 1)}, us | {' | '.join(contestants)} | "
          + " | ".join(f"{one} / paceline" for one in theirs) + " |")
    print("|---|" + "---|" * (len(contestants) + len(theirs)))
    for name in rounds[contestants[0]][0]:
        values = {one: [times[name] for times in rounds[one] if name in times] for one in contestants}
        columns = [cell(values[one]) if values[one] else "" for one in contestants]
        columns += [cell([two / mine for two, mine in zip(values[one], values["paceline"])]) if values[one] else "" for one in theirs]
        print(f"| {name} | {' | '.join(columns)} |", flush=True)
    if options.what == "calls":
        for name, microseconds in imports().items():
            print(f"| {name} | {microseconds:.0f} |" + " |" * (len(contestants) + len(theirs) - 1))


if __name__ == "__main__":
    main()
