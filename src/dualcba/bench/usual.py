"""The usual research loop, written for this comparison.

It has per-sample PIL transforms and a Python list as the reservoir. The adaptor is trained by a
virtual step of all weights with `autograd.grad(create_graph=True)` through the whole backbone.
Evaluation runs in batches of 32 with per-sample transforms.
"""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.func import functional_call

from dualcba.bench.bare import mlp
from dualcba.bench.setup import MEAN, STD, Setup


def to_pil(image: Tensor) -> Image.Image:
    """Convert a raw (channels, H, W) tensor to an image."""
    array = image.permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def to_tensor(image: Image.Image) -> Tensor:
    """Convert an image to a normalised (channels, H, W) tensor."""
    array = np.asarray(image, dtype=np.uint8)
    array = array[:, :, None] if array.ndim == 2 else array
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1).contiguous().float().div(255)
    return (tensor - MEAN) / STD


def augment(image: Image.Image, pad: int) -> Tensor:
    """Crop and flip one image at random, and convert it to a normalised tensor."""
    width, height = image.size
    top, left = random.randint(0, 2 * pad), random.randint(0, 2 * pad)
    image = ImageOps.expand(image, pad).crop((left, top, left + width, top + height))
    return to_tensor(ImageOps.mirror(image) if random.random() < 0.5 else image)


class UsualER:
    """Experience replay with a list of (image, label) pairs."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.net = setup.make_ordinary()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=setup.lr)
        self.images = [to_pil(x) for x in setup.x]  # as in a dataset of PIL images
        self.labels = setup.y.tolist()
        self.buffer: list[tuple[Image.Image, int]] = []
        self.seen = 0

    def collate(self, pairs: list[tuple[Image.Image, int]]) -> tuple[Tensor, Tensor]:
        """Return a batch of augmented images and their labels."""
        x = torch.stack([augment(image, self.setup.pad) for image, _ in pairs])
        y = torch.tensor([label for _, label in pairs])
        return x.to(self.setup.device), y.to(self.setup.device)

    def sample(self) -> tuple[Tensor, Tensor]:
        """Draw a batch from the memory without replacement."""
        count = min(self.setup.batch, len(self.buffer))
        return self.collate(random.sample(self.buffer, count))

    def keep(self, pairs: list[tuple[Image.Image, int]]) -> None:
        """Update the memory by reservoir sampling, sample by sample."""
        for pair in pairs:
            if len(self.buffer) < self.setup.buffer:
                self.buffer.append(pair)
            elif (slot := random.randint(0, self.seen)) < self.setup.buffer:
                self.buffer[slot] = pair
            self.seen += 1

    def update(self, loss: Tensor) -> None:
        """Make one step of SGD."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        loss.item()  # for the log

    def pairs(self, k: int) -> list[tuple[Image.Image, int]]:
        """Return the images and labels of batch k."""
        return [(self.images[i], self.labels[i]) for i in self.setup.rows(k).tolist()]

    def step(self, k: int) -> None:
        """Learn from batch k."""
        pairs = self.pairs(k)
        x, y = self.collate(pairs)
        loss = F.cross_entropy(self.net(x), y)
        if self.buffer:
            mx, my = self.sample()
            loss = loss + F.cross_entropy(self.net(mx), my)
        self.update(loss)
        self.keep(pairs)

    @torch.no_grad()
    def evaluate(self, n: int) -> int:
        """Return the number of correct predictions, in batches of 32 with per-sample transforms."""
        self.net.eval()
        correct = 0
        for start in range(0, n, 32):
            part = slice(start, min(start + 32, n))
            x = torch.stack([to_tensor(image) for image in self.images[part]])
            answers = self.net(x.to(self.setup.device)).argmax(1)
            correct += int((answers == self.setup.y[part]).sum())
        self.net.train()
        return correct


class UsualDual(UsualER):
    """`UsualER` with Dual-CBA; the outer step uses a second-order graph of the whole network."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        C = setup.classes
        self.adaptor = nn.ModuleList([mlp(C), mlp(2)]).to(setup.device)
        self.adam = torch.optim.Adam(self.adaptor.parameters(), lr=setup.adaptor_lr)
        self.old = torch.arange(C, device=setup.device) < C // 2

    def correction(self, z: Tensor) -> Tensor:
        """Return r for logits (n, C)."""
        p = z.detach().softmax(1)
        specific, agnostic = self.adaptor
        mass = torch.stack([p[:, self.old].sum(1), p[:, ~self.old].sum(1)], 1)
        sides = agnostic(mass)
        return 0.5 * (specific(p) + torch.where(self.old, sides[:, :1], sides[:, 1:]))  # type: ignore[no-any-return]

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of the adapted logits."""
        return F.cross_entropy(z + self.correction(z), y)

    def step(self, k: int) -> None:
        """Learn from batch k."""
        if k < self.setup.first or not self.buffer:
            super().step(k)
            return
        pairs = self.pairs(k)
        x, y = self.collate(pairs)
        mx, my = self.sample()
        if (k - self.setup.first) % self.setup.outer_every == 0:
            self.outer(x, y, mx, my)
        self.update(self.loss(self.net(x), y) + self.loss(self.net(mx), my))
        self.keep(pairs)

    def outer(self, x: Tensor, y: Tensor, mx: Tensor, my: Tensor) -> None:
        """Update φ by the gradient through a virtual step of all weights."""
        weights = dict(self.net.named_parameters())
        inner = self.loss(self.net(x), y) + self.loss(self.net(mx), my)
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        virtual = {
            name: w - self.setup.lr * g
            for (name, w), g in zip(weights.items(), grads, strict=True)
        }  # fmt: skip
        ox, oy = self.sample()
        loss = F.cross_entropy(functional_call(self.net, virtual, (ox,)), oy)
        phi = list(self.adaptor.parameters())
        for p, g in zip(phi, torch.autograd.grad(loss, phi), strict=True):
            p.grad = g
        self.adam.step()
