"""Dual-CBA in Lightning, with manual optimisation: each epoch is a task of the stream."""

from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dualcba import Dataset, load_dataset
from dualcba.data import disjoint
from dualcba.plugin import BiasAdaptor, RehearsalMemory, ibn


class Continual(lightning.LightningModule):
    """A classifier that rehearses, with a bias adaptor on its last layer."""

    def __init__(self, data: Dataset, tasks: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.data, self.tasks = data, list(disjoint(data, tasks))
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10)
        )
        self.memory = RehearsalMemory(100)
        self.saved: dict[str, Any] | None = None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.adaptor = BiasAdaptor(self.net[-1], optimizer)
        if self.saved is not None:  # the state of a checkpoint
            self.adaptor.load_state_dict(self.saved["adaptor"])
            self.memory.load_state_dict(self.saved["memory"])
        return optimizer

    def train_dataloader(self) -> DataLoader:
        rows = torch.as_tensor(self.tasks[self.current_epoch].train)
        return DataLoader(TensorDataset(self.data.train_x[rows], self.data.train_y[rows]), 10)

    def on_train_epoch_start(self) -> None:
        self.adaptor.new_task(self.tasks[self.current_epoch].classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.float() / 255)

    def training_step(self, batch: list[Tensor], _: int) -> None:
        optimizer, adaptor, memory = self.optimizers(), self.adaptor, self.memory
        new_x, new_y = batch
        batches = [(new_x, new_y), *([memory.draw(32)] if len(memory) else [])]
        x, y = (torch.cat(part) for part in zip(*batches, strict=True))
        z, h = adaptor.outputs(self, x)
        if adaptor.due:
            outer_x, outer_y = memory.draw(32)
            adaptor.outer_step([(z, h, y)], (adaptor.features(self, outer_x), outer_y))
        loss = F.cross_entropy(adaptor.adapt(z), y)
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=5.0, gradient_clip_algorithm="norm")
        optimizer.step()
        memory.update(new_x, new_y)
        adaptor.end_step(new_y)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        states = {"adaptor": self.adaptor.state_dict(), "memory": self.memory.state_dict()}
        checkpoint["dualcba"] = states

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.saved = checkpoint["dualcba"]


def trainer(tasks: int, **given: Any) -> lightning.Trainer:
    """Return a trainer of one epoch per task."""
    return lightning.Trainer(
        accelerator="cpu", max_epochs=tasks, reload_dataloaders_every_n_epochs=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, **given,
    )  # fmt: skip


def accuracy(model: Continual) -> float:
    """Return the accuracy on the test data, under IBN statistics."""
    with ibn(model, model.memory.samples()[0]), torch.no_grad():
        predicted = model(model.data.test_x).argmax(1)
    return (predicted == model.data.test_y).float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Continual(load_dataset("digits"), tasks=5)
    trainer(5, enable_checkpointing=False).fit(model)
    print(f"accuracy {accuracy(model):.1%}")
