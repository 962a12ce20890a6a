"""Dual-CBA as an Avalanche plugin, for `Naive` on a stream without task labels."""

from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from avalanche.benchmarks import class_incremental_benchmark
from avalanche.benchmarks.utils import DataAttribute, make_avalanche_dataset
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dualcba import load_dataset
from dualcba.plugin import BiasAdaptor, RehearsalMemory, ibn


class DualCBAPlugin(SupervisedPlugin):
    """Rehearses from a reservoir, corrects the logits of the loss, and evaluates under IBN."""

    def __init__(self, adaptor: BiasAdaptor, memory: RehearsalMemory, drawn: int = 32) -> None:
        super().__init__()
        self.adaptor, self.memory, self.drawn = adaptor, memory, drawn
        self.stack = ExitStack()
        self.features: Tensor | None = None
        adaptor.head.register_forward_pre_hook(self.keep)

    def keep(self, _: nn.Module, inputs: tuple[Tensor]) -> None:
        """Store the features of the last forward pass."""
        self.features = inputs[0]

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Begin a task."""
        self.adaptor.new_task(sorted(strategy.experience.classes_in_this_experience))

    def before_training_iteration(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Add a draw from the memory to the batch; its samples are at the end."""
        self.new = strategy.mb_x, strategy.mb_y
        if len(self.memory):
            for k, stored in enumerate(self.memory.draw(self.drawn)):
                strategy.mbatch[k] = torch.cat([strategy.mbatch[k], stored])

    def after_forward(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Make the outer step if it is due, and adapt the logits."""
        z, h, y = strategy.mb_output, self.features, strategy.mb_y
        if self.adaptor.due:
            outer_x, outer_y = self.memory.draw(self.drawn)
            outer = self.adaptor.features(strategy.model, outer_x), outer_y
            self.adaptor.outer_step([(z, h, y)], outer)
        strategy.mb_output = self.adaptor.adapt(z)

    def after_training_iteration(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Update the memory with the new samples."""
        self.memory.update(*self.new)
        self.adaptor.end_step(self.new[1])

    def before_eval(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Use IBN statistics in the evaluation."""
        if len(self.memory):
            self.stack.enter_context(ibn(strategy.model, self.memory.samples()[0]))

    def after_eval(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Restore the running statistics."""
        self.stack.close()


def dataset(x: Tensor, y: Tensor) -> Any:
    """Return images and labels as a dataset of Avalanche."""
    targets = DataAttribute(y.tolist(), "targets", use_in_getitem=False)
    return make_avalanche_dataset(TensorDataset(x.float() / 255, y), data_attributes=[targets])


def main() -> float:
    """Train on five tasks of digits, and return the accuracy at the end."""
    torch.manual_seed(0)
    data = load_dataset("digits")
    train, test = dataset(data.train_x, data.train_y), dataset(data.test_x, data.test_y)
    benchmark = class_incremental_benchmark(
        {"train": train, "test": test}, class_order=list(range(10)), num_experiences=5
    )
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    plugin = DualCBAPlugin(BiasAdaptor(net[-1], optimizer), RehearsalMemory(100))
    strategy = Naive(
        model=net, optimizer=optimizer, criterion=F.cross_entropy, train_mb_size=10,
        eval_mb_size=200, plugins=[plugin],
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True)),
    )  # fmt: skip
    for experience in benchmark.train_stream:
        strategy.train(experience)
    (accuracy,) = strategy.eval(benchmark.test_stream).values()
    return accuracy


if __name__ == "__main__":
    print(f"accuracy {main():.1%}")
