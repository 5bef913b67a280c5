"""Training as PyTorch's users do it: each case prints the bits of its losses, or what it raised. The first argument is the backend."""

import inspect
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import world
from lacking import is_lacking
from world import ARGUMENTS, RANK, SIZE

CASES = []
STEPS = 4
WIDTH = 32


def case(function):
    if not is_lacking(function.__name__, ARGUMENTS[0]):
        CASES.append(function)
    return function


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def batch(step, rank=RANK):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(16, WIDTH, generator=generator), torch.randn(16, 8, generator=generator)


def train(model, optimizer, steps=STEPS, rank=RANK):
    losses = []
    for step in range(steps):
        inputs, targets = batch(step, rank)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@case
def ddp():
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    return train(model, sgd(model))


@case
def ddp_with_fp16_gradients():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model, sgd(model))


@case
def ddp_with_power_sgd():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DistributedDataParallel(network())  # one bucket: the hook's calls for several have no fixed order, with any backend
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model, sgd(model), steps=6)


@case
def ddp_with_uneven_inputs():
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    with model.join():
        return train(model, sgd(model), steps=STEPS + RANK)


@case
def fsdp2_with_a_checkpoint():
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SIZE,))

    def sharded():
        model = network()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    model = sharded()
    losses = train(model, torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False))
    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder, 0)
    dcp.save(get_model_state_dict(model), checkpoint_id=folder[0])
    restored = sharded()
    state = get_model_state_dict(restored)
    dcp.load(state, checkpoint_id=folder[0])
    set_model_state_dict(restored, state)
    inputs, targets = batch(100)
    for one in (model, restored):
        losses.append(nn.functional.mse_loss(one(inputs), targets).item())
    assert losses[-1] == losses[-2], losses
    return losses


@case
def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (SIZE,))
    model = parallelize_module(network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), rank=0)


@case
def zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    losses = train(model, optimizer)
    optimizer.consolidate_state_dict(0)
    return losses


def pipeline(schedule_of, stages_per_rank):
    """The losses of the last rank; the others have none."""
    from torch.distributed.pipelining import PipelineStage

    layers = list(network())
    count = SIZE * stages_per_rank
    parts = [nn.Sequential(*layers[len(layers) * i // count : len(layers) * (i + 1) // count]) for i in range(count)]
    mine = range(RANK, count, SIZE)
    stages = [PipelineStage(parts[number], number, count, torch.device("cpu")) for number in mine]
    schedule = schedule_of(stages, lambda output, target: nn.functional.mse_loss(output, target))
    parameters = [parameter for number in mine for parameter in parts[number].parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1) if parameters else None
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step, rank=0)
        if optimizer:
            optimizer.zero_grad()
        found = []
        schedule.step(*([inputs] if RANK == 0 else []), **({"target": targets, "losses": found} if RANK == SIZE - 1 else {}))
        if optimizer:
            optimizer.step()
        losses += [loss.item() for loss in found]
    expected = losses_of_one_process() if losses else []
    assert all(abs(loss - other) < 1e-5 for loss, other in zip(losses, expected, strict=True)), (losses, expected)
    return losses


def losses_of_one_process():
    """What a pipeline with four parts of a batch must find. Earlier versions of torch do not average the gradients of the parts."""
    from torch.distributed.pipelining import Schedule1F1B

    divisor = 4 if "scale_grads" in inspect.signature(Schedule1F1B).parameters else 1
    model, losses = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for inputs, targets in zip(*(tensor.chunk(4) for tensor in batch(step, rank=0))):
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss / divisor).backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


@case
def pipeline_1f1b():
    from torch.distributed.pipelining import Schedule1F1B

    return pipeline(lambda stages, loss: Schedule1F1B(stages[0], 4, loss_fn=loss), 1)


@case
def pipeline_interleaved():
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    return pipeline(lambda stages, loss: ScheduleInterleaved1F1B(stages, 4, loss_fn=loss), 2)


def main():
    world.init(ARGUMENTS[0], timeout=60)
    for function in CASES:
        result = []
        error = world.outcome(lambda: result.append([float(loss).hex() for loss in function()]))
        world.tell(case=function.__name__, error=error, losses=result[0] if result else [])
        if error is not None:
            os._exit(1)  # the ranks may no longer make the same calls
    dist.destroy_process_group()


main()
