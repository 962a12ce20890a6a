"""Prefetched batches, and the choice between prefetching and storing on the device."""

import dataclasses
import threading

import numpy as np
import pytest
import torch

from dualcba import from_arrays, load_dataset
from dualcba.data.prefetch import fits_on_device, prefetch_batches
from dualcba.experiments import Hardware, Run, Spec


@pytest.mark.parametrize("prefetch", [1, 3, 50])
def test_batches_come_in_order(prefetch):
    x, y = torch.arange(40).view(20, 2), torch.arange(20)
    order = np.random.default_rng(0).permutation(20).reshape(5, 4)
    batches = list(prefetch_batches(x, y, order, prefetch=prefetch))
    assert len(batches) == 5
    for rows, (bx, by) in zip(order, batches, strict=True):
        assert by.tolist() == rows.tolist()
        assert torch.equal(bx, x[torch.from_numpy(rows)])


def test_the_thread_stops_when_the_iterator_is_closed():
    x, y = torch.zeros(100, 2), torch.zeros(100)
    reader = prefetch_batches(x, y, np.arange(100).reshape(50, 2))
    next(reader)
    reader.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]


def test_memory_mapped_data_give_the_same_run(tmp_path):
    digits = load_dataset("digits")
    file = tmp_path / "x.npy"
    np.save(file, digits.train_x.numpy())
    mapped = from_arrays(
        np.load(file, mmap_mode="c"), digits.train_y, digits.test_x, digits.test_y,
        num_classes=10, mean=digits.mean, std=digits.std, pad=1, name="digits",
    )  # fmt: skip
    cpu = torch.device("cpu")
    assert mapped.memory_mapped
    assert not fits_on_device(mapped, cpu)
    assert fits_on_device(digits, cpu)
    assert fits_on_device(dataclasses.replace(mapped, memory_mapped=False), cpu)
    results = []
    for data in (digits, mapped):
        run = Run(Spec(method="er-dual-cba", eval_every=40), data, Hardware(device="cpu"))
        for _ in run.steps():
            pass
        results.append(run.result())
        results[-1].pop("seconds")
    assert results[0] == results[1]
