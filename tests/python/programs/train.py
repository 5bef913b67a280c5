"""A small training run with DDP: prints the losses' bits, the backend and the cores of each rank. The backend is the first argument."""

import json
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)), bucket_cap_mb=0.01
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
losses = []
for _ in range(5):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 32)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
group = dist.distributed_c10d._get_default_group()
name = type(group._get_backend(torch.device("cpu"))).__name__ if hasattr(dist.Backend, "_ensure_backend_registered") else type(group).__name__
print(json.dumps({"rank": dist.get_rank(), "losses": losses, "backend": name, "cores": sorted(os.sched_getaffinity(0))}), flush=True)
dist.destroy_process_group()
