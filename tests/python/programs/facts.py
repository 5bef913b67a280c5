"""Prints facts, a line of JSON each; the last line of a rank under a launcher has its losses and the backend of the default group."""

import json
import os
import sys

import torch
import torch.distributed as dist


def tell(**facts):
    # One write a line: ranks share a pipe, and print() writes the end of the line on its own when PYTHONUNBUFFERED is set.
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def tell_losses(losses):
    group = dist.distributed_c10d._get_default_group()
    has_backends = hasattr(dist.Backend, "_ensure_backend_registered")
    name = type(group._get_backend(torch.device("cpu")) if has_backends else group).__name__
    losses = [float(loss).hex() for loss in losses]
    tell(rank=dist.get_rank(), losses=losses, backend=name, cores=sorted(os.sched_getaffinity(0)))
