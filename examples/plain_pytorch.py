"""Dual-CBA in a plain PyTorch loop: AdamW, a scheduler, bfloat16 and clipped gradients."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba import load_dataset
from dualcba.data import disjoint
from dualcba.plugin import BiasAdaptor, RehearsalMemory, ibn


def prepare(x: Tensor) -> Tensor:
    """Turn raw images into inputs of the network; augmentation would go here."""
    return x.float() / 255


torch.manual_seed(0)
data = load_dataset("digits")
net = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10)
)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
memory = RehearsalMemory(100)
adaptor = BiasAdaptor(net[-1], optimizer, kind="dual-cba")

for task in disjoint(data, tasks=5):  # classes 0 and 1, then 2 and 3, …
    adaptor.new_task(task.classes)
    for rows in torch.as_tensor(task.train).split(10):
        new_x, new_y = data.train_x[rows], data.train_y[rows]
        x, y, outer = new_x, new_y, None
        if len(memory):
            mem_x, mem_y = memory.draw(32)
            x, y = torch.cat([x, mem_x]), torch.cat([y, mem_y])
        with torch.autocast("cpu", torch.bfloat16):
            z, h = adaptor.outputs(net, prepare(x))  # logits and features
            if adaptor.due:
                outer_x, outer_y = memory.draw(32)
                outer = adaptor.features(net, prepare(outer_x)), outer_y
        if outer is not None:
            adaptor.outer_step([(z, h, y)], outer)
        loss = F.cross_entropy(adaptor.adapt(z), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        memory.update(new_x, new_y)
        adaptor.end_step(new_y)

with ibn(net, prepare(memory.samples()[0])), torch.no_grad():
    predicted = net(prepare(data.test_x)).argmax(1)
accuracy = (predicted == data.test_y).float().mean().item()
print(f"accuracy {accuracy:.1%}")
