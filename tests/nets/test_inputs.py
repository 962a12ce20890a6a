"""What a network is called with: whole numbers, and several inputs as one row of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba.nets import Network
from dualcba.nets.inputs import Inputs, Part, SeveralInputs, make_inputs

SHAPES = {"ids": (3,), "vector": (5,), "image": (1, 2, 3)}
TYPES = {"ids": torch.int32, "vector": torch.float32, "image": torch.uint8}


def samples(n: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "ids": rng.integers(0, 9, (n, 3), dtype=np.int32),
        "vector": rng.normal(size=(n, 5)).astype(np.float32),
        "image": rng.integers(0, 256, (n, 1, 2, 3), dtype=np.uint8),
    }


def test_the_parts_of_a_row_are_the_given_ones() -> None:
    inputs = make_inputs(SHAPES, TYPES)
    assert isinstance(inputs, SeveralInputs)
    rows = inputs.check(samples(), "observed")
    assert rows.shape == (4, 16 + 24 + 8)  # each part at a multiple of 8 bytes
    for some in (rows, rows[1:3], rows[[2, 0]]):
        parts = inputs.unpack(some)
        assert [p.dtype for p in parts] == list(TYPES.values())
    for part, given in zip(inputs.unpack(rows), samples().values(), strict=True):
        assert torch.equal(part, torch.from_numpy(given))


def test_rows_are_samples_too() -> None:
    inputs = make_inputs(SHAPES, TYPES)
    rows = inputs.check(samples(), "observed")
    assert torch.equal(inputs.check(rows.numpy(), "observed"), rows)
    assert torch.equal(inputs.check(rows.repeat(1, 2)[:, :48], "observed"), rows)


def test_a_function_of_the_floats() -> None:
    inputs = make_inputs(SHAPES, TYPES)
    rows = inputs.check(samples(), "observed")
    assert inputs.map_floats(lambda x: x, rows) is rows
    ids, vector, image = inputs.unpack(inputs.map_floats(lambda x: x.clamp(-0.1, 0.1), rows))
    assert vector.abs().max() == np.float32(0.1)
    assert torch.equal(ids, inputs.unpack(rows)[0])
    assert torch.equal(image, inputs.unpack(rows)[2])


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 2)

    def forward(self, vector: Tensor, image: Tensor, ids: Tensor) -> Tensor:
        assert (ids.dtype, image.dtype) == (torch.int32, torch.float32)
        assert image.max() <= 1.0  # bytes are scaled as a single image is
        return self.out(vector + ids.sum(1, keepdim=True))  # type: ignore[no-any-return]


def test_a_dict_is_given_by_name_and_a_tuple_by_order() -> None:
    inputs = make_inputs(SHAPES, TYPES)
    module = Named()
    net = Network(module, inputs.shape, 2, inputs=inputs)
    z, h = net(inputs.check(samples(), "given"))
    assert (tuple(z.shape), tuple(h.shape)) == ((4, 2), (4, 5))
    order = ["vector", "image", "ids"]
    by_order = make_inputs([SHAPES[k] for k in order], [TYPES[k] for k in order])
    same = Network(module, by_order.shape, 2, inputs=by_order)
    x = tuple(samples()[k] for k in order)
    assert torch.equal(same(by_order.check(x, "given"))[0], z)
    with net.cast_weights(torch.bfloat16), torch.autocast("cpu", torch.bfloat16):
        low = net(inputs.check(samples(), "given"))[0]
    torch.testing.assert_close(low, z, rtol=0.05, atol=0.1)


def test_the_last_layer_has_a_nested_name() -> None:
    inner = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))
    net = Network(nn.ModuleDict({"x": inner})["x"], (4,), 2, head="1.1")
    assert (net.head_name, net.head) == ("1.1", inner[1][1])
    new = nn.Linear(3, 2)
    net.replace_head(new)
    assert inner[1][1] is new


@pytest.mark.parametrize("given", [np.int8, np.int32, np.int64, np.uint8, np.uint16])
def test_whole_numbers_of_any_type_keep_their_values(given: type) -> None:
    part = Part((2,), torch.int64)
    assert part.check(np.array([[1, 100]], given), "given").tolist() == [[1, 100]]
    large = 2**53 + 1
    assert part.check([[large, 0]], "given").tolist() == [[large, 0]]  # not by a float


BAD: dict[str, tuple[Any, Any, str]] = {
    "float": (Inputs(Part((2,), torch.int64)), [[1.0, 2.0]], "float32', expected torch.int64"),
    "bool": (Inputs(Part((2,), torch.int64)), torch.ones(1, 2) > 0, "bool', expected torch.int64"),
    "large": (
        Inputs(Part((2,), torch.int32)),
        [[2**40, 1]],
        "776, expected one that fits torch.int32",
    ),
    "shape": (Inputs(Part((2,), torch.int64)), [[1]], r"\(1,\), expected \(2,\)"),
    "array": (make_inputs(SHAPES, TYPES), np.zeros((2, 3)), "shape of one sample of observed x"),
    "bytes": (make_inputs(SHAPES, TYPES), np.zeros((2, 48)), "float64', expected torch.uint8"),
    "list": (make_inputs(SHAPES, TYPES), [1], "x is 'list', expected a dict of 'ids', 'vector'"),
    "names": (make_inputs(SHAPES, TYPES), {"ids": 1}, r"x is \['ids'\], expected a dict of"),
    "count": (make_inputs(((2,), (3,)), torch.uint8), ([1],), "1 arrays', expected a tuple of 2"),
    "part": (
        make_inputs(SHAPES, TYPES),
        samples() | {"vector": np.zeros((4, 6))},
        r"part 'vector' of observed x is \(6,\), expected \(5,\)",
    ),
    "length": (
        make_inputs(SHAPES, TYPES),
        samples() | {"ids": samples(3)["ids"]},
        "number of samples in part 'vector' of observed x is 4, expected 3, as in part 'ids'",
    ),
    "infinite": (
        make_inputs(SHAPES, TYPES),
        samples() | {"vector": np.full((4, 5), np.inf)},
        r"part 'vector' of observed x\[0\] holds a NaN",
    ),
    "infinite row": (
        make_inputs(SHAPES, TYPES),
        np.full((1, 48), 255, np.uint8),
        r"part 'vector' of observed x\[0\] holds a NaN",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_samples_that_do_not_fit(name: str) -> None:
    inputs, x, message = BAD[name]
    with pytest.raises(ValueError, match=message) as caught:
        inputs.check(x, "observed")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ({}, torch.uint8, "input_shape is {}, expected the names and shapes"),
        ({3: (2,)}, torch.uint8, "expected the names and shapes"),
        ({"a": 3}, torch.uint8, "input_shape is 3, expected the shape of one sample"),
        (((2,), 3), torch.uint8, "input_shape is 3, expected the shape of one sample"),
        (((2,), (3,)), (torch.uint8,), "expected one type, or one per input"),
        ({"a": (2,)}, {"b": torch.uint8}, "expected one type, or one per input"),
        ((2,), (torch.uint8,), "expected a single type for a single input"),
    ],
)
def test_inputs_that_cannot_be(shape: Any, dtype: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_inputs(shape, dtype)


def test_a_network_that_does_not_accept_the_inputs() -> None:
    inputs = make_inputs({"x": (5,), "y": (2,)}, torch.float32)
    with pytest.raises(ValueError, match=r"inputs of shape {'x': \(5,\), 'y': \(2,\)}") as caught:
        Network(Named(), inputs.shape, 2, inputs=inputs)
    assert "\n" not in str(caught.value)
