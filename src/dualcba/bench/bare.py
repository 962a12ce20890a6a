"""The bare loop: a minimal hand-written loop with the arithmetic of ER and of ER-Dual-CBA.

It has no checks, no state to save and no choice of method. On a GPU it runs eagerly in bf16
autocast and channels-last order, with batched augmentation.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dualcba.bench.setup import MEAN, STD, Setup


def crop_flip(x: Tensor, pad: int, rng: np.random.Generator) -> Tensor:
    """Crop after zero padding and flip, at random for each image."""
    n, _, side, _ = x.shape
    edges = rng.integers(0, 2 * pad + 1, (n, 2))
    flips = rng.random(n) < 0.5
    if x.is_cuda:
        return _gather(x, pad, torch.from_numpy(np.c_[edges, flips]).to(x.device))
    padded = np.zeros((*x.shape[:2], side + 2 * pad, side + 2 * pad), np.uint8)
    padded[:, :, pad:-pad, pad:-pad] = x.numpy()
    out = np.empty(x.shape, np.uint8)
    for i, ((top, left), flip) in enumerate(zip(edges.tolist(), flips.tolist(), strict=True)):
        crop = padded[i, :, top : top + side, left : left + side]
        out[i] = crop[:, :, ::-1] if flip else crop
    return torch.from_numpy(out)


def _gather(x: Tensor, pad: int, at: Tensor) -> Tensor:
    n, channels, side, _ = x.shape
    across = torch.arange(side, device=x.device)
    rows = (across + at[:, :1]) * (side + 2 * pad)
    columns = torch.where(at[:, 2:] > 0, side - 1 - across, across) + at[:, 1:2]
    index = (rows[:, :, None] + columns[:, None, :]).view(n, 1, -1).expand(-1, channels, -1)
    return F.pad(x, [pad] * 4).view(n, channels, -1).gather(2, index).view(x.shape)


class BareER:
    """Experience replay: CE(new) + CE(memory), then SGD, then the reservoir."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.net = setup.make_ordinary()
        if setup.cuda:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=setup.lr, fused=True)
        self.rng = np.random.default_rng(0)
        self.x = torch.zeros((setup.buffer, *setup.shape), dtype=torch.uint8, device=setup.device)
        self.y = torch.zeros(setup.buffer, dtype=torch.long, device=setup.device)
        self.seen = 0

    def view(self, x: Tensor) -> Tensor:
        """Return raw images augmented and normalised for training."""
        return self.normalise(crop_flip(x, self.setup.pad, self.rng))

    def normalise(self, x: Tensor) -> Tensor:
        """Return raw images as normalised floats."""
        view = x.float().mul_(1 / (255 * STD)).sub_(MEAN / STD)
        return view.contiguous(memory_format=torch.channels_last) if self.setup.cuda else view

    def logits(self, view: Tensor) -> Tensor:
        """Return the network's logits in float32."""
        if not self.setup.cuda:
            return self.net(view)  # type: ignore[no-any-return]
        with torch.autocast("cuda", torch.bfloat16):
            return self.net(view).float()  # type: ignore[no-any-return]

    def sample(self) -> tuple[Tensor, Tensor]:
        """Draw a batch from the memory without replacement."""
        filled = min(self.seen, self.setup.buffer)
        drawn = self.rng.choice(filled, min(self.setup.batch, filled), replace=False)
        rows = torch.from_numpy(drawn).to(self.setup.device)
        return self.x[rows], self.y[rows]

    def keep(self, x: Tensor, y: Tensor) -> None:
        """Update the memory by reservoir sampling (algorithm R)."""
        n, size = len(y), self.setup.buffer
        age = self.seen + np.arange(n)
        slots = np.where(age < size, age, (self.rng.random(n) * (age + 1)).astype(np.int64))
        kept = {slot: i for i, slot in enumerate(slots.tolist()) if slot < size}
        if kept:
            at = torch.tensor([list(kept), list(kept.values())], device=x.device)
            self.x[at[0]] = x[at[1]]
            self.y[at[0]] = y[at[1]]
        self.seen += n

    def update(self, loss: Tensor) -> None:
        """Make one step of SGD."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def step(self, k: int) -> None:
        """Learn from batch k."""
        x, y = self.setup.data(k)
        loss = F.cross_entropy(self.logits(self.view(x)), y)
        if self.seen:
            mx, my = self.sample()
            loss = loss + F.cross_entropy(self.logits(self.view(mx)), my)
        self.update(loss)
        self.keep(x, y)

    @torch.no_grad()
    def evaluate(self, n: int) -> int:
        """Return the number of correct predictions, in batches, counted on the device."""
        self.net.eval()
        correct = torch.zeros((), dtype=torch.long, device=self.setup.device)
        for x, y in self.setup.evaluated(n):
            correct += (self.logits(self.normalise(x)).argmax(1) == y).sum()
        self.net.train()
        return int(correct)


class BareDual(BareER):
    """`BareER` with Dual-CBA: r = ½(ω(p) + ν(p_old, p_new)), and a closed-form outer step."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        C = setup.classes
        self.omega = mlp(C).to(setup.device)
        self.nu = mlp(2).to(setup.device)
        phi = [*self.omega.parameters(), *self.nu.parameters()]
        self.phi = phi
        self.adam = torch.optim.Adam(phi, lr=setup.adaptor_lr, fused=True)
        old, new = setup.halves
        self.sides = torch.zeros(C, 2, device=setup.device)
        self.sides[old, 0] = 1
        self.sides[new, 1] = 1
        self.head = self.net.get_submodule("fc")
        self.head.register_forward_pre_hook(self._remember)

    def _remember(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.h = inputs[0].float()

    def correction(self, z: Tensor) -> Tensor:
        """Return r for logits (n, C)."""
        p = z.softmax(1)
        return 0.5 * (self.omega(p) + self.nu(p @ self.sides) @ self.sides.T)  # type: ignore[no-any-return]

    def step(self, k: int) -> None:
        """Learn from batch k."""
        x, y = self.setup.data(k)
        if k < self.setup.first or not self.seen:  # no old classes yet: r = 0
            super().step(k)
            return
        mx, my = self.sample()
        z, h = self.logits(self.view(x)), self.h
        mz, mh = self.logits(self.view(mx)), self.h
        Z, n = torch.cat([z, mz]).detach(), len(z)
        if (k - self.setup.first) % self.setup.outer_every == 0:
            self.outer(Z, torch.cat([h, mh]).detach(), torch.cat([y, my]), n)
        with torch.no_grad():
            r = self.correction(Z)
        self.update(F.cross_entropy(z + r[:n], y) + F.cross_entropy(mz + r[n:], my))
        self.keep(x, y)

    def outer(self, Z: Tensor, H: Tensor, y: Tensor, n: int) -> None:
        """∇φ L_buf = ∇φ ⟨G(Z; φ), S⟩ with S = −α (H H'ᵀ + 1) E, by one backward through φ."""
        lr = self.setup.lr
        ox, oy = self.sample()
        with torch.no_grad():
            self.track(False)
            self.logits(self.view(ox))
            self.track(True)
        r = self.correction(Z)
        with torch.no_grad():
            q = (Z + r).softmax(1)
            w = torch.full((len(Z), 1), 1 / n, device=Z.device)
            w[n:] = 1 / (len(Z) - n)
            G = (q - F.one_hot(y, q.shape[1])) * w
            K = H @ self.h.T
            virtual = self.head(self.h) - lr * (K.T @ G) - lr * G.sum(0)
            E = (virtual.softmax(1) - F.one_hot(oy, q.shape[1])) / len(oy)
            S = -lr * ((K + 1) @ E)
            V = w * q * (S - (q * S).sum(1, keepdim=True))
        for p, g in zip(self.phi, torch.autograd.grad(r, self.phi, V), strict=True):
            p.grad = g
        self.adam.step()

    def track(self, on: bool) -> None:
        """Turn updates of the running statistics of batch normalisation on or off."""
        for layer in self.net.modules():
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                layer.track_running_stats = on


def mlp(classes: int) -> nn.Sequential:
    """Return the network of an adaptor."""
    return nn.Sequential(nn.Linear(classes, 256), nn.ReLU(), nn.Linear(256, classes))
