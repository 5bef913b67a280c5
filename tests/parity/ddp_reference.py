#!/usr/bin/python3
"""Computes with Python's DistributedDataParallel and DataParallel what ddp_parity_test.cpp, join_parity_test.cpp and
data_parallel_parity_test.cpp compare with.

    ddp_reference.py CASE... FOLDER

Two ranks over Gloo; only rank 0 runs DataParallel and the cases of one process.

It writes raw little-endian files to FOLDER: inputs.f32 [step, rank, batch, 20], labels.i64 [step, rank, batch], weights.f32 (all
parameters in order), powersgd.seed (of the first factors), and for each case CASE.losses.f32 [rank, step] and CASE.final.f32 (the
weights after the last step). The cases: plain, unused (find_unused_parameters), fp16, bf16, powersgd1, powersgd2 (the number is the
rank of the factors), batch_norm, which is one process with BatchNorm on the whole batch; join and join_active (rank 0's inputs end after
13 steps; the averages divide by the number of ranks, or of ranks with inputs); whole (DataParallel, which on a CPU runs the module on the
whole batch); and parts: for each of the numbers of samples and replicas below, chunks.i64 has the sizes of torch.chunk's parts, and
parts.f64 the concatenated outputs of the parts and the sum of their gradients, as DataParallel on several devices is documented.
"""
import contextlib
import os
import sys

from reference_ranks import join_group, run_ranks, write

RANKS, STEPS, BATCH, WIDTH = 2, 20, 8, 20
JOIN_STEPS = (13, STEPS)  # for each rank
SAMPLES, REPLICAS = (1, 2, 3, 5, 7, 8, 10, 16), (1, 2, 3, 4, 5)


def is_used(rank, step):
    """Whether the rank's pass goes through the extra layer: none, one, or both ranks do."""
    return step % 3 == 2 or (step % 3 == 1 and rank == step % 2)


def make_model(norm):
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.extra = nn.Linear(WIDTH, 30), nn.Linear(30, 30)
            self.norm = nn.BatchNorm1d(30)
            self.last = nn.Linear(30, 10)

        def forward(self, x, use_extra):
            h = self.first(x)
            h = torch.relu(self.norm(h) if norm else h)
            if use_extra:
                h = h + self.extra(h)
            return self.last(h)

    model = Net()
    for parameter in model.norm.parameters():
        parameter.requires_grad_(norm)
    return model


def bf16_hook(_, bucket):
    """bf16_compress_hook without NCCL: the elements are rounded before and after a sum in float32."""
    import torch
    import torch.distributed as dist

    narrow = bucket.buffer().to(torch.bfloat16).float().div_(RANKS)
    work = dist.all_reduce(narrow, async_op=True).get_future()
    return work.then(lambda done: done.value()[0].to(torch.bfloat16).float())


def register(case, model):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if case == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif case == "bf16":
        model.register_comm_hook(None, bf16_hook)
    elif case.startswith("powersgd"):
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(case[-1]), start_powerSGD_iter=2),
                                 powerSGD_hook.powerSGD_hook)


def take_steps(case, model, module, batches):
    import torch
    import torch.nn.functional as F

    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    losses = torch.zeros(STEPS)
    uneven = model.join(divide_by_initial_world_size=case == "join") if case.startswith("join") else contextlib.nullcontext()
    with uneven:
        for step, (inputs, labels, use_extra) in enumerate(batches):
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(inputs, use_extra), labels)
            loss.backward()
            optimizer.step()
            losses[step] = loss.item()
    return losses


def write_parts(folder, weights, inputs):
    """Writes the concatenated outputs of the parts of a batch, and the sum of their gradients."""
    import torch

    rows, chunks = inputs.flatten(0, 2), []
    results = []
    for samples in SAMPLES:
        for replicas in REPLICAS:
            module = make_model(norm=False)
            module.load_state_dict(weights)
            parts = rows[:samples].chunk(replicas)
            chunks += [len(part) for part in parts] + [0] * (max(REPLICAS) - len(parts))
            outputs = torch.cat([module(part, True) for part in parts])
            outputs.square().sum().backward()
            gradients = [p.grad.flatten() for p in module.parameters() if p.requires_grad]
            results += [outputs.detach().flatten(), *gradients]
    write(torch.tensor(chunks), folder, "chunks.i64")
    write(torch.cat(results).double(), folder, "parts.f64")


def run_case(case, folder, weights, inputs, labels, rank):
    import torch
    import torch.distributed as dist

    module = make_model(norm=case == "batch_norm")
    module.load_state_dict(weights)
    if case in ("batch_norm", "whole"):
        batches = [(inputs[step].flatten(0, 1), labels[step].flatten(), True) for step in range(STEPS)]
        model = torch.nn.DataParallel(module) if case == "whole" else module
        losses = take_steps(case, model, module, batches)
    else:
        model = torch.nn.parallel.DistributedDataParallel(module, find_unused_parameters=case == "unused")
        register(case, model)
        batches = [(inputs[step, rank], labels[step, rank], case != "unused" or is_used(rank, step)) for step in range(STEPS)]
        if case.startswith("join"):
            batches = batches[:JOIN_STEPS[rank]]
        losses = take_steps(case, model, module, batches)
    all_losses = [torch.empty(STEPS) for _ in range(RANKS)]
    dist.all_gather(all_losses, losses)
    if rank == 0:
        write(torch.stack(all_losses), folder, f"{case}.losses.f32")
        write(torch.cat([p.detach().flatten() for p in module.parameters()]), folder, f"{case}.final.f32")


def train(cases, folder):
    import numpy
    import torch
    import torch.distributed as dist

    rank = join_group()
    torch.manual_seed(1)
    weights = {key: value.clone() for key, value in make_model(norm=True).state_dict().items()}
    inputs = torch.randn(STEPS, RANKS, BATCH, WIDTH)
    labels = torch.randint(10, (STEPS, RANKS, BATCH))
    if rank == 0:
        write(inputs, folder, "inputs.f32")
        write(labels, folder, "labels.i64")
        write(torch.cat([p.detach().flatten() for p in make_with(weights).parameters()]), folder, "weights.f32")
        with open(os.path.join(folder, "powersgd.seed"), "w") as f:
            print(numpy.random.RandomState(0).randint(1_000_000_000), file=f)
    for case in cases:
        if case != "parts":
            run_case(case, folder, weights, inputs, labels, rank)
        elif rank == 0:
            write_parts(folder, weights, inputs)
    dist.barrier()


def make_with(weights):
    model = make_model(norm=True)
    model.load_state_dict(weights)
    return model


run_ranks(RANKS, train, sys.argv[1:-1], sys.argv[-1])
