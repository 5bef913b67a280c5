# The same program as from_python.cpp, line by line:
#
#   torchrun --nproc_per_node 2 from_python.py
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
inputs = torch.arange(0, 1000).reshape(1000, 1) / 1000
samples = TensorDataset(inputs, inputs.square())
sampler = DistributedSampler(samples, seed=3)
loader = DataLoader(samples, batch_size=25, sampler=sampler)

net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
for parameter in net.parameters():
    torch.nn.init.constant_(parameter, 0.1)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()

total = loss.detach()
dist.all_reduce(total)
if rank == 0:
    print(f"loss {total.item() / dist.get_world_size():.6f}")
    torch.save(model.module.state_dict(), "net.pt")
