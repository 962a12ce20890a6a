"""Packets: what goes in comes out, as views, by a layout without values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dualcba.engine.packet import pack, unpack

shapes = arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
parts = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4),
    st.one_of(
        arrays.arrays(np.int64, shapes),
        arrays.arrays(np.int32, shapes),
        arrays.arrays(np.float64, shapes, elements=st.floats(allow_nan=False)),
    ),
    max_size=5,
)


@given(parts)
def test_a_packet_gives_back_every_part(given: dict[str, np.ndarray]) -> None:
    packet, layout = pack(given)
    assert packet.dtype == np.int64
    assert packet.ndim == 1
    out = unpack(torch.from_numpy(packet), layout)
    assert list(out) == list(given)
    for name, value in given.items():
        assert tuple(out[name].shape) == value.shape
        assert np.array_equal(out[name].numpy(), value)


def test_the_layout_names_shapes_only() -> None:
    """Equal layouts mean the same captured step, so values must not enter it."""
    one = pack({"rows": np.arange(3), "noise": np.array([0.5])})[1]
    two = pack({"rows": np.arange(3) + 9, "noise": np.array([0.7])})[1]
    assert one == two
    assert hash(one) == hash(two)
    assert one != pack({"rows": np.arange(4), "noise": np.array([0.5])})[1]


def test_unpacking_copies_nothing() -> None:
    packet, layout = pack({"a": np.arange(4), "b": np.array([1.5, 2.5])})
    tensor = torch.from_numpy(packet)
    for part in unpack(tensor, layout).values():
        start = tensor.data_ptr()
        assert start <= part.data_ptr() < start + 8 * len(tensor)


@dataclass(frozen=True)
class Part:
    rows: Any
    augment: Any = None


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    views: dict[str, Any]
    noise: Any


def test_dataclasses_in_dataclasses_come_back_with_tensors() -> None:
    some = Part(np.arange(3), np.array([[0.5], [1.5]]))
    packet, layout = pack(Whole((some, Part(np.arange(2))), {"strong": np.ones((2, 2), int)}, None))
    got = unpack(torch.from_numpy(packet), layout)
    assert isinstance(got, Whole)
    assert isinstance(got.parts, tuple)
    assert [part.rows.tolist() for part in got.parts] == [[0, 1, 2], [0, 1]]
    assert got.parts[0].augment.tolist() == [[0.5], [1.5]]
    assert got.parts[1].augment is None
    assert got.views["strong"].tolist() == [[1, 1], [1, 1]]
    assert got.noise is None


def test_what_is_missing_is_part_of_the_layout() -> None:
    one, two = (pack(Part(np.arange(3), augment))[1] for augment in (None, np.arange(0)))
    assert one != two
