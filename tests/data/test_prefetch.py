import dataclasses
import threading

import numpy as np
import pytest
import torch

from dualcba import from_arrays, load_dataset
from dualcba.data.prefetch import read_ahead, resident
from dualcba.experiments import Hardware, Run, Spec


@pytest.mark.parametrize("ahead", [1, 3, 50])
def test_batches_come_in_order(ahead):
    x, y = torch.arange(40).view(20, 2), torch.arange(20)
    plan = np.random.default_rng(0).permutation(20).reshape(5, 4)
    batches = list(read_ahead(x, y, plan, ahead=ahead))
    assert len(batches) == 5
    for rows, (bx, by) in zip(plan, batches, strict=True):
        assert by.tolist() == rows.tolist()
        assert torch.equal(bx, x[torch.from_numpy(rows)])


def test_a_reader_that_is_not_read_to_its_end_stops():
    x, y = torch.zeros(100, 2), torch.zeros(100)
    reader = read_ahead(x, y, np.arange(100).reshape(50, 2))
    next(reader)
    reader.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("read-ahead")]


def test_mapped_data_are_read_ahead_and_give_the_same_run(tmp_path):
    digits = load_dataset("digits")
    file = tmp_path / "x.npy"
    np.save(file, digits.train_x.numpy())
    mapped = from_arrays(
        np.load(file, mmap_mode="c"), digits.train_y, digits.test_x, digits.test_y,
        num_classes=10, mean=digits.mean, std=digits.std, pad=1, name="digits",
    )  # fmt: skip
    cpu = torch.device("cpu")
    assert mapped.mapped
    assert not resident(mapped, cpu)
    assert resident(digits, cpu)
    assert resident(dataclasses.replace(mapped, mapped=False), cpu)
    results = []
    for data in (digits, mapped):
        run = Run(Spec(method="er-dual-cba", eval_every=40), data, Hardware("cpu"))
        for _ in run.steps():
            pass
        results.append(run.result())
        results[-1].pop("seconds")
    assert results[0] == results[1]
