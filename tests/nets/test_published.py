"""Networks of timm and Hugging Face by name; nothing is downloaded."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.torchvision_operators import define_missing
from dualcba import Learner
from dualcba.checks.stream import Material, play
from dualcba.experiments import Spec
from dualcba.nets import freeze, make_network

has_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
has_hf = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is missing")


@pytest.fixture(scope="module")
def operators() -> None:
    """Operators that torchvision wants to exist, which its wheel lacks beside torch for CPUs."""
    define_missing()


def learns(net: nn.Module, shape: Any, **given: Any) -> Learner:
    """Teach a learner a few steps, and ask it."""
    options = {"buffer": 12, "batch_size": 4, "device": "cpu", "lr": 0.01, **given}
    learner = Learner(net, shape, 4, **options)
    material = Material(learner)
    play(learner, material.stream(steps=2))
    assert learner.predict(material.questions()).shape == (5,)
    return learner


@has_timm
@pytest.mark.usefixtures("operators")
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("mobilenetv3_small_050", "classifier"),
        ("convnext_atto", "head.fc"),
        ("vit_tiny_patch16_224", "head"),
    ],
)
def test_a_network_of_timm(name: str, head: str) -> None:
    shape = (1, 32, 32)
    learner = learns(freeze(make_network(f"timm:{name}", shape, 4)), shape, cache_features=True)
    assert learner.parts.trunk is not None
    net = make_network(f"timm:{name}", shape, 4)
    assert Learner(net, shape, 4).network.head_name == head


@has_timm
@pytest.mark.usefixtures("operators")
def test_a_network_of_timm_is_trained() -> None:
    shape = (3, 32, 32)
    learns(make_network("timm:mobilenetv3_small_050", shape, 4), shape)


def configured(folder: Path, kind: str, **more: Any) -> str:
    """Write the configuration of a tiny model; its name."""
    import transformers

    tiny = {
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    getattr(transformers, f"{kind}Config")(**tiny, **more).save_pretrained(folder)
    return f"hf:{folder}"


@has_hf
@pytest.mark.parametrize(("kind", "head"), [("Bert", "classifier"), ("Roberta", "out_proj")])
def test_a_text_model_of_hugging_face(kind: str, head: str, tmp_path: Path) -> None:
    name = configured(tmp_path, kind, vocab_size=12)
    given: dict[str, Any] = {"dtype": torch.int64}
    learner = learns(make_network(name, (6,), 4), (6,), **given)
    assert learner.network.head_name.endswith(head)
    learns(freeze(make_network(name, (6,), 4)), (6,), cache_features=True, **given)
    named = {"input_ids": (6,), "attention_mask": (6,)}
    learns(make_network(name, (6,), 4), named, **given)
    learns(freeze(make_network(name, (6,), 4)), named, cache_features=True, **given)


@has_hf
@pytest.mark.usefixtures("operators")
def test_an_image_model_of_hugging_face(tmp_path: Path) -> None:
    name = configured(tmp_path, "ViT", patch_size=8)
    learns(make_network(name, (1, 16, 16), 4), (1, 16, 16))


@pytest.mark.parametrize(("name", "package"), [("timm:x", "timm"), ("hf:x", "transformers")])
def test_a_missing_extra_is_one_line(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = name.partition(":")[0]
    with pytest.raises(
        ValueError, match=rf"is missing, expected `pip install 'dualcba\[{extra}\]'"
    ):
        make_network(name, (3, 8, 8), 4)


class Library:
    """In the place of timm: what it is asked for."""

    asked: dict[str, Any]

    def create_model(self, name: str, **given: Any) -> nn.Module:
        self.asked = {"name": name, **given}
        if name == "odd":
            raise RuntimeError("two\nlines")
        return nn.Sequential(nn.Flatten(), nn.Linear(12, given["num_classes"]))


def test_weights_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, "timm", library)  # type: ignore[arg-type]
    make_network("timm:some.model", (3, 2, 2), 4)
    wanted = {"name": "some.model", "num_classes": 4, "in_chans": 3}
    assert library.asked == {**wanted, "pretrained": False}
    make_network("timm:some.model:pretrained", (3, 2, 2), 4)
    assert library.asked == {**wanted, "pretrained": True}
    for name, shape, message in [
        ("timm:odd", (3, 2, 2), "'timm:odd' cannot be made: two$"),
        ("timm:some", (12,), r"cannot be made: input shape is \(12,\), expected \(channels"),
        ("timm:some:pretrained-well", (3, 2, 2), "expected timm:NAME or timm:NAME:pretrained"),
        ("timm::pretrained", (3, 2, 2), "expected timm:NAME or timm:NAME:pretrained"),
        ("timm:", (3, 2, 2), "unknown network 'timm:'"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_network(name, shape, 4)


def test_names_in_a_spec() -> None:
    assert Spec(network="timm:resnet18").network == "timm:resnet18"  # type: ignore[arg-type]
    for name in ("timm", "timm:", "tim:resnet18", "resnet19", 3):
        with pytest.raises(ValueError, match=r"network is .* or 'timm:NAME' or 'hf:NAME'"):
            Spec(network=name)  # type: ignore[arg-type]


def test_freezing_keeps_the_last_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 2)))
    assert freeze(net) is net
    assert [n for n, p in net.named_parameters() if p.requires_grad] == ["2.0.weight", "2.0.bias"]
    assert [m.training for m in net.modules()] == [True, False, False, True, True]
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    freeze(other, "0")
    assert [n for n, p in other.named_parameters() if p.requires_grad] == ["0.weight", "0.bias"]
