"""Training with Hugging Face's accelerate, as its users write it. accelerate chooses "gloo" itself, so Paceline stands in for it. Prints
each rank's losses."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from facts import tell_losses
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
data = DataLoader(TensorDataset(torch.randn(120, 32), torch.randint(8, (120,))), batch_size=8, shuffle=True)
model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
losses = []
for _ in range(2):
    for inputs, classes in data:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), classes)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    # The last batch is shorter: gathered for a metric, its repeated samples are left out.
    predicted = [accelerator.gather_for_metrics(model(inputs).argmax(1)) for inputs, _ in data]
    losses.append(float(torch.cat(predicted).sum()))
    assert sum(map(len, predicted)) == 120
losses.append(accelerator.reduce(torch.tensor(losses[0]), "mean").item())
tell_losses(losses)
accelerator.end_training()
