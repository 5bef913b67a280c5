"""A small training run with DDP: prints the losses' bits, the backend and the cores of each rank. The backend is the first argument."""

import sys

import torch
import torch.distributed as dist
from facts import tell_losses

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
    losses.append(loss.item())
tell_losses(losses)
dist.destroy_process_group()
