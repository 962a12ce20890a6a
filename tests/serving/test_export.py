"""Exported models: the same scores on a thousand inputs, the labels inside, clear refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dualcba import Dataset, Learner, Transform
from dualcba.estimator import DualCBAClassifier
from dualcba.nets import MLP, make_network
from dualcba.normalization.layers import convert_normalization
from dualcba.serving import export_model, load_model

Make = Callable[..., Learner]
Teach = Callable[..., Learner]

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the extra onnx",
)
FORMATS = [".pt2", pytest.param(".onnx", marks=needs_onnx)]

METHODS: dict[str, dict[str, Any]] = {
    "er-dual-cba": {},
    "er+mkd": {"ibn": True},
    "er+ccl-dc": {"ibn": True},
    "icarl": {"ibn": True},
    "bic": {"seen_only": True},
    "lucir": {},
    "rar": {"readout": "lda"},
    "clser": {"readout": "both-lda"},
    "er": {"readout": "ncm"},
    "er-ace": {"test_flip": True, "seen_only": True},
    "derpp": {"readout": "both"},
    "las": {"readout": "debiased"},
    "er-balanced-cba": {"readout": "debiased", "head": "cosine"},
}


def thousand(shape: tuple[int, ...] = (3, 8, 8)) -> Tensor:
    rng = np.random.default_rng(5)
    return torch.from_numpy(rng.integers(0, 256, (1000, *shape), dtype=np.uint8))


def close(found: Tensor, wanted: Tensor) -> bool:
    """Whether scores are equal to 1e-5, and −∞ at the same places."""
    finite = wanted.isfinite()
    same = torch.equal(found.isfinite(), finite)
    return same and float((found - wanted)[finite].abs().max()) < 1e-5


def scores(learner: Learner, x: Tensor) -> Tensor:
    return learner.snapshot().logits(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("method", METHODS)
def test_programs_score_as_predict_does(
    method: str, ending: str, make_learner: Make, teach: Teach, tmp_path: Path
) -> None:
    learner, x = teach(make_learner(method, **METHODS[method]), tasks=2), thousand()
    learner.export(tmp_path / f"model{ending}")
    model = load_model(tmp_path / f"model{ending}")
    means = method == "icarl" or "readout" in METHODS[method]
    unit = 8 if means else 1  # distances to means are multiplied by 8
    assert close(model.logits(x) / unit, scores(learner, x) / unit)
    same = model.predict(x) == learner.predict(x)
    assert float(same.float().mean()) > 0.998  # of equal scores, another may be the largest
    torch.testing.assert_close(model.predict_proba(x[:1]), learner.predict_proba(x[:1]))


@pytest.mark.parametrize("norm", ["cn", "adab2n"])
@pytest.mark.parametrize("ending", FORMATS)
def test_programs_of_other_normalisations_take_any_number_of_samples(
    norm: str, ending: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = convert_normalization(make_network("mlp", (3, 8, 8), 6), norm)
    learner, x = Learner(net, (3, 8, 8), 6, method="er", buffer=20), thousand()
    learner.new_task([0, 1])
    learner.observe(x[:8], [0, 1] * 4)
    learner.export(tmp_path / f"model{ending}")
    model = load_model(tmp_path / f"model{ending}")
    assert close(model.logits(x), scores(learner, x))
    assert close(model.logits(x[:1]), scores(learner, x[:1]))


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    residual = nn.Sequential(Twice(), nn.Flatten(), nn.Linear(192, 6))
    return {
        "resnet18-slim": make_network("resnet18-slim", (3, 8, 8), 6),
        "mlp": make_network("mlp", (3, 8, 8), 6),
        "no normalisation": nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Linear(8, 6)),
        "a layer that two use": residual,
        "bare": nn.Sequential(nn.Flatten(), nn.Linear(192, 6)),
    }


class Twice(nn.Module):
    """A convolution whose output goes to a normalisation and, besides, to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        return out + self.norm(out)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("fold", "readout"), [(True, "head"), (False, "head"), (True, "debiased")])
@pytest.mark.parametrize("name", networks())
def test_a_state_dict_fits_the_network(
    name: str, fold: bool, readout: str, make_learner: Make, teach: Teach, tmp_path: Path
) -> None:
    given = {"ibn": True, "readout": readout}
    learner = teach(make_learner("er-dual-cba", networks()[name], **given), tasks=1)
    learner.export(tmp_path / "model.safetensors", fold=fold)
    x, other = thousand()[: 100 if name == "resnet18-slim" else 1000], networks()[name]
    model = load_model(tmp_path / "model.safetensors", other)
    assert close(model.logits(x), scores(learner, x))


class Shared(nn.Module):
    """Two layers share their weights, and a buffer is a part of another one."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(8, 8)
        self.layers = nn.Sequential(nn.Linear(4, 8), layer, nn.ReLU(), layer, nn.Linear(8, 2))
        self.register_buffer("shifts", torch.arange(8.0).view(2, 4))
        self.register_buffer("shift", self.shifts[1])  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + self.shift)  # type: ignore[no-any-return]


@pytest.mark.parametrize("fold", [False, True])
def test_a_state_dict_of_shared_weights_fits_the_network(fold: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    learner = Learner(Shared(), (4,), 2, dtype=torch.float32, method="er", boundaries="inferred")
    learner.observe(torch.eye(4), [0, 1, 0, 1])
    learner.export(tmp_path / "model.safetensors", fold=fold)
    model = load_model(tmp_path / "model.safetensors", Shared())
    assert close(model.logits(torch.eye(4)), scores(learner, torch.eye(4)))


def test_folding_leaves_no_normalisation_and_the_last_layers_of_the_classes(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    learner = Learner(MLP((5,), 2), (5,), dtype=torch.float32, batch_size=4, ibn=True)
    learner.new_task(["x", "y", "z"])
    learner.observe(torch.rand(6, 5), ["x", "y", "z"] * 2)
    learner.export(tmp_path / "model.safetensors")
    from safetensors.torch import load_file

    found = load_file(tmp_path / "model.safetensors")
    wanted = [
        "fc.bias",
        "fc.weight",
        *(f"hidden.{k}.{p}" for k in (1, 4) for p in ("bias", "weight")),
    ]
    assert sorted(found) == wanted
    assert len(found["fc.weight"]) == 3
    model = load_model(tmp_path / "model.safetensors", MLP((5,), 3))
    x = torch.rand(1000, 5)
    assert model.predict(x).tolist() == learner.predict(x).tolist()
    assert model.classes_ == ["x", "y", "z"]


@pytest.mark.parametrize("ending", [".safetensors", *FORMATS])
def test_labels_shape_and_type_are_in_the_file(ending: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 5)), np.array(["b", "a", "c"])[np.arange(60) % 3]
    clf = DualCBAClassifier(random_state=0).fit(X, y)
    if ending == ".safetensors":
        with pytest.raises(ValueError, match=r"by class means, expected .* with readout='head'"):
            clf.export(tmp_path / "model.safetensors")
        clf = DualCBAClassifier(random_state=0, learner_options={"readout": "head"}).fit(X, y)
    clf.export(tmp_path / f"model{ending}")
    own = make_network("mlp", (5,), 3) if ending == ".safetensors" else None
    model = load_model(tmp_path / f"model{ending}", own)
    assert model.classes_ == ["a", "b", "c"]
    assert model.inputs.shape == (5,)
    assert model.inputs.dtype == torch.float32
    assert model.predict(X.astype(np.float32)).tolist() == clf.predict(X).tolist()


@pytest.mark.parametrize("names", [[False, True], [0.0, 1.0]])
def test_labels_that_equal_positions_keep_their_type(names: list[Any], tmp_path: Path) -> None:
    learner = Learner(nn.Linear(2, 2), (2,), dtype=torch.float32, buffer=4, lr=0.1)
    learner.new_task(names)
    learner.observe(torch.eye(2), names)
    learner.export(tmp_path / "model.safetensors")
    model, x = load_model(tmp_path / "model.safetensors", nn.Linear(2, 2)), torch.eye(2)
    assert [type(label) for label in model.classes_] == [type(label) for label in names]
    assert model.predict(x).dtype == learner.predict(x).dtype


def test_preprocessing_is_in_the_program(make_learner: Make, teach: Teach, tmp_path: Path) -> None:
    """The file's own input is raw samples, without this package."""
    transform = Transform([0.3, 0.4, 0.5], [0.2, 0.3, 0.1], pad=1, flip=True)
    learner, x = teach(make_learner("er-dual-cba", transform=transform), tasks=2), thousand()
    learner.export(tmp_path / "model.pt2")
    extra = {"about.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert close(program.module()(x), scores(learner, x))
    assert json.loads(extra["about.json"]) == {
        "classes": list(range(6)), "input_shape": [3, 8, 8], "dtype": "uint8", "step": learner.step,
    }  # fmt: skip


def test_what_cannot_be_exported_is_refused_in_one_line(
    images: Dataset, make_learner: Make, teach: Teach, tmp_path: Path
) -> None:
    learner = teach(make_learner("icarl"), tasks=1)
    with pytest.raises(
        ValueError, match=r"^the predictions are made by class means, expected [^\n]*$"
    ):
        learner.export(tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"ending of the file is 'model.txt', expected .safetensors or"
    ):
        learner.export(tmp_path / "model.txt")
    learner = teach(make_learner("er", test_flip=True), tasks=1)
    with pytest.raises(ValueError, match=r"^the predictions are made by an image and its mirror "):
        learner.export(tmp_path / "model.safetensors")
    learner = teach(make_learner("er", Branching()), tasks=1)
    with pytest.raises(ValueError, match=r"^torch.export cannot trace the model: [^\n]*$"):
        learner.export(tmp_path / "model.pt2")
    learner.export(tmp_path / "model.safetensors")
    read = load_model(tmp_path / "model.safetensors", Branching())
    assert torch.equal(read.predict(images.test_x), learner.predict(images.test_x))
    with pytest.raises(ValueError, match="the snapshot was read from a file"):
        export_model(read, tmp_path / "again.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors"]


class Branching(nn.Module):
    """A network whose path depends on the values of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(192, 8), nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x.flatten(1)))
        return self.last(h.relu() if float(h.detach().sum()) != 0.123 else h)  # type: ignore[no-any-return]


def test_files_that_are_no_exports_are_refused(
    make_learner: Make, teach: Teach, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=r"model.pt2 is missing, expected an exported"):
        load_model(tmp_path / "model.pt2")
    for ending in (".pt2", ".safetensors"):
        (tmp_path / f"model{ending}").write_bytes(b"other")
        network = MLP((5,), 2) if ending == ".safetensors" else None
        with pytest.raises(ValueError, match=r"^[^\n]*cannot be read[^\n]*$"):
            load_model(tmp_path / f"model{ending}", network)
    learner = teach(make_learner("er"), tasks=1)
    learner.save(tmp_path / "learner.safetensors")
    with pytest.raises(ValueError, match=r"has no about.json, expected an exported model"):
        load_model(tmp_path / "learner.safetensors", MLP((5,), 2))
    learner.export(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"^the network does not fit the state dict: [^\n]*$"):
        load_model(tmp_path / "model.safetensors", MLP((3, 8, 8), 6))
    with pytest.raises(ValueError, match=r"network for model.safetensors is None, expected an nn"):
        load_model(tmp_path / "model.safetensors")


@pytest.mark.skipif(find_spec("onnxscript") is not None, reason="the extra onnx is installed")
def test_onnx_names_its_extra(make_learner: Make, teach: Teach, tmp_path: Path) -> None:
    with pytest.raises(
        ImportError, match=r"is not installed, expected `pip install 'dualcba\[onnx\]'`"
    ):
        teach(make_learner("er"), tasks=1).export(tmp_path / "model.onnx")


@needs_onnx
def test_the_example_of_the_page_for_onnx_runtime(
    images: Dataset, make_learner: Make, teach: Teach, tmp_path: Path, monkeypatch: Any
) -> None:
    page = Path(__file__).parents[2] / "docs" / "serving.md"
    (code,) = re.findall(r"^```py\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    learner = teach(make_learner("er-dual-cba"), tasks=2)
    monkeypatch.chdir(tmp_path)
    learner.export("model.onnx")
    names: dict[str, Any] = {"images": images.test_x.numpy()}
    exec(code, names)
    found = [names["classes"][k] for k in names["scores"].argmax(1)]
    assert found == learner.predict(images.test_x).tolist()
