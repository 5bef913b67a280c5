"""Prints the last line of a rank under a launcher: its losses, and the backend of the default group."""

import json
import os

import torch
import torch.distributed as dist


def tell_losses(losses):
    group = dist.distributed_c10d._get_default_group()
    has_backends = hasattr(dist.Backend, "_ensure_backend_registered")
    name = type(group._get_backend(torch.device("cpu")) if has_backends else group).__name__
    facts = {"rank": dist.get_rank(), "losses": [float(loss).hex() for loss in losses], "backend": name}
    print(json.dumps({**facts, "cores": sorted(os.sched_getaffinity(0))}), flush=True)
