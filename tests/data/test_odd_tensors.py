"""Samples and labels of unusual kinds: taken as the numbers they hold, or refused with one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Learner, from_arrays
from dualcba.data import from_torch
from dualcba.estimator import DualCBAClassifier

X = torch.rand(8, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 4


class Own(Tensor):
    """A subclass."""


class Raises:
    """Whatever is asked of it raises."""

    def __array__(self, *given: Any, **named: Any) -> Any:
        raise KeyError("no\nno")

    def __iter__(self) -> Any:
        raise ArithmeticError("no\nno")

    def __repr__(self) -> str:
        raise ZeroDivisionError


def nested(depth: int = 100_000) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


REFUSED: dict[str, Callable[[Tensor], Any]] = {
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "quantised": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint8),
    "complex": lambda t: t.to(torch.complex64),
    "conjugate": lambda t: torch.complex(t.float(), t.float()).conj(),
    "nested": lambda t: torch.nested.nested_tensor([t.reshape(-1)[:3], t.reshape(-1)[:2]]),
    "jagged": lambda t: torch.nested.nested_tensor(
        [t.reshape(-1)[:3], t.reshape(-1)[:2]], layout=torch.jagged
    ),
    "bits": lambda t: t.byte().view(torch.bits8),
    "complex array": lambda t: t.numpy() + 1j,
    "none": lambda t: None,
    "text": lambda t: "abc",
    "mapping": lambda t: {"a": 1},
    "deep list": lambda t: nested(),
    "raises": lambda t: Raises(),
    "function": lambda t: len,
    "huge": lambda t: [[10**400] * 5] * 8,
}
TAKEN: dict[str, Callable[[Tensor], Any]] = {
    "gradient": lambda t: t.requires_grad_() if t.is_floating_point() else t,
    "subclass": lambda t: t.as_subclass(Own),
    "parameter": lambda t: nn.Parameter(t, requires_grad=False),
    "negative view": lambda t: torch._neg_view(-t),
    "expanded": lambda t: t.unsqueeze(0).expand(1, *t.shape)[0],
    "strided": lambda t: t.repeat_interleave(2, 0)[::2],
    "array": lambda t: t.numpy(),
    "big endian": lambda t: t.numpy().astype(t.numpy().dtype.newbyteorder(">")),
    "list": lambda t: t.tolist(),
}


def learner() -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
    made = Learner(net, (5,), 4, dtype=torch.float32, buffer=8, batch_size=4, device="cpu")
    made.new_task([0, 1, 2, 3])
    return made


def fitted() -> DualCBAClassifier:
    made = DualCBAClassifier(random_state=0)
    return made.partial_fit(X.numpy(), Y.numpy(), classes=[0, 1, 2, 3])


SAMPLES: dict[str, Callable[[Any], Any]] = {
    "observe": lambda x: learner().observe(x, Y),
    "predict": lambda x: learner().predict(x),
    "predict_proba": lambda x: learner().predict_proba(x),
    "from_arrays": lambda x: from_arrays(x, Y, X, Y),
    "from_arrays test": lambda x: from_arrays(X, Y, x, Y),
    "fit": lambda x: DualCBAClassifier(epochs=1, random_state=0).fit(x, Y),
    "partial_fit": lambda x: fitted().partial_fit(x, Y),
    "classifier": lambda x: fitted().predict(x),
}
LABELS: dict[str, Callable[[Any], Any]] = {
    "observe": lambda y: learner().observe(X, y),
    "new_task": lambda y: learner().new_task(y),
    "from_arrays": lambda y: from_arrays(X, y, X, Y),
    "fit": lambda y: DualCBAClassifier(epochs=1, random_state=0).fit(X, y),
    "partial_fit": lambda y: fitted().partial_fit(X, y),
    "classes": lambda y: DualCBAClassifier(random_state=0).partial_fit(X, Y, classes=y),
}


@pytest.mark.filterwarnings("ignore")  # of torch and scikit-learn, on what is refused then
@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_numbers_is_refused(kind: str) -> None:
    for given, calls in ((X, SAMPLES), (Y, LABELS)):
        for name, call in calls.items():
            with pytest.raises((ValueError, TypeError)) as error:
                call(REFUSED[kind](given.clone()))
            assert str(error.value), name
            assert "\n" not in str(error.value), name


@pytest.mark.parametrize("kind", TAKEN)
def test_what_holds_numbers_is_taken(kind: str, differ: Any) -> None:
    for name in ("predict", "classifier"):
        assert SAMPLES[name](TAKEN[kind](X.clone())).tolist() == SAMPLES[name](X).tolist()
    one, two = learner(), learner()
    one.observe(X, Y)
    two.observe(TAKEN[kind](X.clone()), TAKEN[kind](Y.clone()))
    assert not differ(one.state_dict(), two.state_dict())
    learner().new_task(TAKEN[kind](Y.clone()[:2]))
    fitted().partial_fit(TAKEN[kind](X.clone()), TAKEN[kind](Y.clone()))


@pytest.mark.parametrize("kind", ["meta", "sparse", "quantised", "complex", "bits"])
def test_items_of_a_torch_dataset(kind: str) -> None:
    bad = REFUSED[kind](X.clone())
    with pytest.raises(ValueError, match="train sample 0"):
        from_torch([(bad, 0), (bad, 1)], show=False)
    label = REFUSED[kind](torch.tensor([1]))
    with pytest.raises(ValueError, match="train sample 0"):
        from_torch([(X[0], label)] * 4, show=False)


def test_long_doubles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype of train x is '.*', expected numbers"):
        from_arrays(X.numpy().astype(np.longdouble), Y, X, Y)
