"""Two real processes that train one learner, against one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_cases import CASES, RANKS, RESUMED, SHAPE, network
from torch import Tensor, nn

from dualcba import Learner
from dualcba.normalization.statistics import grouped_statistics

ROOT = Path(__file__).parents[2]


def started(folder: Path, device: str = "cpu") -> list[Any]:
    """Return what each rank has found, after a process for each of them."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    given = os.environ | {"DEVICE": device, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    script = Path(__file__).with_name("distributed_cases.py")
    command = [sys.executable, str(script), str(folder)]
    processes = [
        subprocess.Popen(
            command, env=given | {"RANK": str(rank)}, cwd=folder, stderr=subprocess.PIPE, text=True
        )
        for rank in range(RANKS)
    ]
    try:
        errors = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(errors)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A folder of files, and what each rank has found."""
    folder = tmp_path_factory.mktemp("ranks")
    learner = RESUMED.learner()
    RESUMED.teach(learner, range(1))
    learner.save(folder / "half-of-one.safetensors")
    return folder, started(folder)


def close(found: Tensor, wanted: Tensor, name: str) -> None:
    torch.testing.assert_close(
        found, wanted, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}"
    )


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare states: equal up to rounding, and exactly where nothing is rounded."""
    assert found["meta"] == wanted["meta"]
    assert found["tensors"].keys() == wanted["tensors"].keys()
    for name, t in wanted["tensors"].items():
        close(found["tensors"][name], t, name)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one_process(name: str, ranks: tuple[Path, list[Any]]) -> None:
    case, (_, found) = CASES[name], ranks
    learner = case.learner()
    predictions = case.teach(learner, range(3))
    for each, _ in (rank[name] for rank in found):
        for k, (one, two) in enumerate(zip(predictions, each, strict=True)):
            close(two, one, f"prediction {k}")
    same(found[0][name][1], learner.state_dict())


@pytest.mark.parametrize("name", CASES)
def test_no_bit_differs_between_ranks(name: str, ranks: tuple[Path, list[Any]]) -> None:
    (first, one), (second, two) = (rank[name] for rank in ranks[1])
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert one["meta"] == two["meta"]
    different = [k for k, t in one["tensors"].items() if not torch.equal(t, two["tensors"][k])]
    assert different == []


def test_statistics_of_shares_are_those_of_whole_groups(ranks: tuple[Path, list[Any]]) -> None:
    torch.manual_seed(0)
    layer, x, weights = nn.BatchNorm2d(4), torch.randn(6, 4, 2, 2), torch.randn(6, 4, 2, 2)
    x.requires_grad_()
    with grouped_statistics([layer], 2, cumulative=True):
        y = layer(x)
    (weights * y).sum().backward()
    wanted = [y.detach(), x.grad, *(p.grad for p in layer.parameters()), *layer.buffers()]
    for rank in ranks[1]:
        for found, one in zip(rank["normalised"], wanted, strict=True):
            torch.testing.assert_close(found, one)


def test_states_load_with_any_number_of_ranks(ranks: tuple[Path, list[Any]]) -> None:
    folder, found = ranks
    whole, other = RESUMED.learner(), RESUMED.learner(3, seed=9)
    RESUMED.teach(whole, range(3))
    other.load(folder / "half-of-two.safetensors")
    RESUMED.teach(other, range(1, 3))
    for state in (other.state_dict(), *found[1]["resumed"]["states"].values()):
        same(state, whole.state_dict())


def test_each_rank_stores_a_share_of_the_memory(ranks: tuple[Path, list[Any]]) -> None:
    for rank in ranks[1]:
        assert rank["resumed"]["share"] == {"rows": 11 + 1, "size": 21}


def test_a_failure_of_one_rank_is_one_of_all_and_changes_nothing(
    ranks: tuple[Path, list[Any]],
) -> None:
    first, second = (rank["failures"] for rank in ranks[1])
    shape = "shape of one sample of observed x is (3, 7, 8), expected (3, 8, 8)"
    assert second["shape"] == shape
    assert first["shape"] == f"rank 1 failed in observe: {shape}"
    assert first["file"].startswith("missing-0.safetensors")
    for found in (first, second):
        assert found["no task"].startswith("no task has begun")
        wanted = "new_task on rank 1 is [2, 4], expected [2, 3], as on rank 0"
        assert found["classes"] == wanted
        assert found["outlier"].startswith("x has a value of 1e+09, over 1000 times the largest")
        assert found["pickle"] == "a distributed learner cannot be pickled, expected save and load"
        assert found["copy"]
        assert found["changed"] == []
    assert first["call"] == ("rank 1 called observe, expected new_task: the same call on all ranks")


def test_what_cannot_be_distributed_is_refused_in_one_line(
    ranks: tuple[Path, list[Any]],
) -> None:
    for rank in ranks[1]:
        found = rank["refusals"]
        assert found["seed"] == ("seed of the learner on rank 1 is 1, expected 0, as on rank 0")
        assert found["engine"] == "engine is 'captured', expected 'auto' or 'eager' if distributed"
        assert found["dropout"].startswith("layer '1' of the network is Dropout(p=0.1")
        assert "expected BatchNorm1d, 2d or 3d with running statistics" in found["adab2n"]
        assert found["fixmatch"].startswith("labelled of FixMatch is 2, expected 0 if distributed")


def test_learners_of_several_ranks_that_are_not_distributed_warn(
    ranks: tuple[Path, list[Any]],
) -> None:
    for rank in ranks[1]:
        ((message, file),) = rank["alone"]
        assert message.startswith("the process group has 2 ranks and distributed is False")
        assert file == "distributed_cases.py"


def test_a_distributed_learner_needs_a_process_group() -> None:
    with pytest.raises(ValueError, match="distributed is True, expected False, or"):
        Learner(network(), SHAPE, 6, distributed=True, device="cpu")


# ---------------------------------------------------------------------- GPUs


@pytest.fixture
def nccl(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone, with NCCL."""
    store = f"file://{tmp_path}/nccl"
    dist.init_process_group("nccl", store, timedelta(seconds=60), world_size=1, rank=0)
    yield
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.usefixtures("exact", "nccl")
@pytest.mark.parametrize("name", ["er", "derpp-dual-cba", "er-balanced-cba", "growing"])
def test_one_rank_with_nccl_trains_as_a_learner_on_its_own(name: str) -> None:
    case = CASES[name]
    learners = [case.learner(device="cuda", distributed=d) for d in (False, True)]
    alone, shared = (case.teach(learner, range(3)) for learner in learners)
    for k, (one, two) in enumerate(zip(alone, shared, strict=True)):
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-3, msg=f"prediction {k}")


@pytest.mark.gpu
@pytest.mark.usefixtures("exact")
def test_two_ranks_that_share_a_gpu_agree_in_every_bit(tmp_path: Path) -> None:
    first, second = started(tmp_path, "cuda")
    for name in (name for name in first if name in CASES):
        one, two = (rank[name][1]["tensors"] for rank in (first, second))
        assert [k for k, t in one.items() if not torch.equal(t, two[k])] == []
