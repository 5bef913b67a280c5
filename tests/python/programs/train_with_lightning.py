"""Training with Lightning, as its users write it. The backend is the first argument. Prints each rank's losses."""

import sys

import lightning
import torch
from facts import tell_losses
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
        self.losses = []

    def training_step(self, batch, _index):
        loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _index):
        loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("validation", loss, sync_dist=True)

    def on_validation_end(self):
        self.losses.append(self.trainer.callback_metrics["validation"].item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def on_train_end(self):
        tell_losses(self.losses)


lightning.seed_everything(0, verbose=False)
samples = TensorDataset(torch.randn(96, 32), torch.randint(8, (96,)))
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=sys.argv[1]), max_epochs=2, num_sanity_val_steps=0,
    use_distributed_sampler=True, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Classifier(), DataLoader(samples, 8, shuffle=True), DataLoader(samples, 8))
