"""RAR: DER++ with RandAugment and repeated steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dualcba import Learner
from dualcba.data import Transform
from dualcba.data.randaugment import RandAugment, RandAugmentTransform
from dualcba.losses import Batch, Term, identity, total
from dualcba.methods.derpp import DERpp
from dualcba.methods.fixmatch import FixMatch
from dualcba.methods.rar import RAR
from dualcba.nets import MLP, make_network


def test_loss_and_outer_loss_are_those_of_derpp() -> None:
    rng = np.random.default_rng(0)

    def batch(n: int) -> Batch:
        z, a, b = (torch.from_numpy(rng.normal(size=(n, 4))) for _ in range(3))
        y = torch.from_numpy(rng.integers(0, 4, n))
        return Batch(z, y, z, z, {"logits": a, "raw_logits": b})

    new, mem, outer = batch(5), [batch(3), batch(3)], batch(3)
    rar, derpp = RAR(alpha=0.4, beta=0.6), DERpp(alpha=0.4, beta=0.6)
    assert torch.equal(rar.loss(new, mem, identity), derpp.loss(new, mem, identity))
    assert torch.equal(
        total(rar.outer_terms(outer), identity), total(derpp.outer_terms(outer), identity)
    )
    assert (rar.draws, rar.columns) == (2, ("logits", "raw_logits"))


@pytest.mark.parametrize(("options", "own"), [({}, 1), ({"operations": 2, "magnitude": 9}, 2)])
def test_trains_with_crop_and_randaugment_and_no_flip(
    options: dict[str, int], own: int, make_learner: Callable[..., Learner], teach: Any
) -> None:
    learner = make_learner("rar-cba", outer_every=1, method_options=options)
    transform = learner.parts.context.transform
    assert isinstance(transform, RandAugmentTransform)
    assert (transform.pad, transform.flip) == (1, False)
    magnitude = options.get("magnitude", 14)
    assert transform.randaugment.operations == own
    assert transform.randaugment.magnitudes == (magnitude,)
    shapes: list[tuple[int, ...]] = []
    augment = transform.augment

    def recorded(x: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(params.shape))
        return augment(x, params)

    transform.augment = recorded  # type: ignore[method-assign]
    teach(learner, tasks=2, steps=5)
    # the new batch, at all steps but the first with two draws; in the second task after the outer
    few, many = (8, 3 + own), (24, 3 + own)
    assert shapes == [few] + [many] * 4 + [few, many] * 5


def test_the_network_sees_augmented_samples(
    make_learner: Callable[..., Learner], make_batches: Any, images: Any
) -> None:
    learner = make_learner("rar")
    seen: list[torch.Tensor] = []
    learner.network.module.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    params = []
    draw = learner.parts.context.transform.draw

    def recorded(rng: np.random.Generator, n: int) -> Any:
        params.append(torch.from_numpy(draw(rng, n)))
        return params[-1].numpy()

    learner.parts.context.transform.draw = recorded  # type: ignore[method-assign]
    ((x, y), *_), *_ = make_batches()
    learner.new_task([0, 1])
    learner.observe(x, y)
    base = Transform(images.mean, images.std, pad=1)
    crop = base.augment(x, params[0][:, :3])
    want = base.normalize(RandAugment(magnitude=14)(crop, params[0][:, 3:]))
    assert torch.equal(seen[0], want)
    assert not torch.equal(want, base.normalize(crop))
    assert torch.equal(learner.memory.x[: len(x)], x)  # raw images are stored


@pytest.mark.parametrize("repeats", [1, 3])
def test_steps_are_repeated_and_samples_stored_once(
    repeats: int, make_learner: Callable[..., Learner], teach: Any, make_batches: Any
) -> None:
    learner = make_learner("rar-cba", buffer=200, method_options={"repeats": repeats})
    moves: list[int] = []
    learner.parts.optimizer.register_step_post_hook(lambda *_: moves.append(learner.step))
    terms, draws = learner.method.terms, []

    def recorded(new: Batch, mem: Sequence[Batch]) -> list[Term]:
        draws.append(len(mem))
        return terms(new, mem)

    learner.method.terms = recorded  # type: ignore[method-assign]
    teach(learner, steps=4)
    assert moves == [step for step in range(8) for _ in range(repeats)]
    assert draws[: repeats + 1] == [0] * repeats + [2]  # stored in the last of them
    assert learner.memory.seen == 64
    arrived = [x for task in make_batches(3, steps=4)[:2] for x, _ in task]
    assert torch.equal(learner.memory.x[:64], torch.cat(arrived))
    assert learner.parts.loss_monitor.values[:8].isfinite().all()


def test_labelled_samples_are_stored_once_too(
    make_learner: Callable[..., Learner], make_batches: Any
) -> None:
    learner = make_learner(FixMatch(RAR(repeats=3)))
    x, y = make_batches(3)[0][0]
    learner.new_task([0, 1])
    learner.observe(x, torch.where(torch.arange(len(y)) < 3, y, -1))
    assert (learner.memory.seen, learner.memory.filled) == (3, 3)
    assert torch.equal(learner.memory.x[:3], x[:3])


def test_the_adaptor_learns_in_the_first_of_the_repeats_alone(
    make_learner: Callable[..., Learner], teach: Any
) -> None:
    learner = make_learner("rar-cba", outer_every=2, method_options={"repeats": 3})
    moves: list[int] = []
    assert learner.parts.outer_loop.optimizer is not None
    learner.parts.outer_loop.optimizer.register_step_post_hook(
        lambda *_: moves.append(learner.step)
    )
    teach(learner, steps=4)
    assert moves == [4, 6]


@pytest.mark.parametrize(("name", "shape"), [("mlp", (1, 8, 8)), ("resnet18-slim", (3, 32, 32))])
def test_one_channel_and_the_slim_resnet(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    network = make_network(name, shape, 4)
    learner = Learner(
        network, shape, 4, method="rar-dual-cba", buffer=12, batch_size=4, device="cpu"
    )
    for task in ([0, 1], [2, 3]):
        learner.new_task(task)
        for _ in range(2):
            x = rng.integers(0, 256, (4, *shape), dtype=np.uint8)
            learner.observe(x, rng.choice(task, 4))
    assert learner.parts.loss_monitor.values[:4].isfinite().all()
    assert learner.predict(x).shape == (4,)


def test_prediction_is_not_augmented(make_learner: Callable[..., Learner], teach: Any) -> None:
    learner = teach(make_learner("rar"))
    x = learner.memory.x[:10]
    network = learner.network.module.eval()
    want = network(learner.parts.context.transform.normalize(x)).softmax(1)
    torch.testing.assert_close(learner.predict_proba(x), want.detach())


@pytest.mark.parametrize(
    ("shape", "dtype"), [((6,), torch.float32), ((3, 8, 8), torch.float32), ((6,), torch.uint8)]
)
def test_samples_that_are_not_images_are_refused(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    with pytest.raises(ValueError, match=r"expected torch\.uint8 of shape"):
        Learner(MLP(shape, 4), shape, 4, method="rar", dtype=dtype)


def test_impossible_options_are_named(make_learner: Callable[..., Learner]) -> None:
    with pytest.raises(ValueError, match="repeats is 0, expected at least 1"):
        RAR(repeats=0)
    with pytest.raises(ValueError, match="magnitude is 99, expected 0 to 30"):
        make_learner(RAR(magnitude=99))
