"""Networks of timm and Hugging Face by name, which need extras, and `freeze`.

    timm:resnet18                 a model of timm, with random weights
    timm:resnet18:pretrained      the same with its published weights, which are downloaded
    hf:FOLDER                     a classifier of Hugging Face's transformers, by its configuration

`hf:` is followed by the name of a model or a folder with its `config.json`. The model is an image
classifier for images (channels, height, width), and else a classifier of token sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from dualcba.errors import expected, install, unknown
from dualcba.nets.network import find_head

PRETRAINED = "pretrained"
"""The last part of a name that stands for published weights."""

Shape = tuple[int, ...]


def published_network(name: str, input_shape: Shape, num_classes: int) -> nn.Module:
    """Return a network named `timm:NAME` or `hf:NAME`, with `:pretrained` for published weights."""
    source, _, model = name.partition(":")
    if source not in SOURCES or not model:
        raise ValueError(unknown("network", name, [f"{s}:NAME" for s in SOURCES]))
    model, _, asked = model.partition(f":{PRETRAINED}")
    if asked or not model:
        wanted = f"{source}:NAME or {source}:NAME:{PRETRAINED}"
        raise ValueError(expected("network", name, wanted))
    package, make = SOURCES[source]
    library = _import(package, source, name)
    try:
        return make(library, model, input_shape, num_classes, name.endswith(f":{PRETRAINED}"))
    except Exception as error:  # the libraries may raise anything, with several lines
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the network {name!r} cannot be made: {reason}") from error


def _import(package: str, extra: str, name: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        given = f"network is {name!r} and {error.name or package} is missing"
        raise ValueError(f"{given}, expected {install(extra)}") from None
    except Exception as error:  # its dependencies may not work with this build of torch
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"network is {name!r} and {package} does not import: {reason}") from error


def _timm(timm: Any, name: str, shape: Shape, classes: int, pretrained: bool) -> nn.Module:
    if len(shape) != 3:
        raise ValueError(expected("input shape", shape, "(channels, height, width)"))
    model: nn.Module = timm.create_model(
        name, pretrained=pretrained, num_classes=classes, in_chans=shape[0]
    )
    fit: Callable[..., None] | None = getattr(model, "set_input_size", None)
    if fit is not None:  # transformers have a fixed image size
        fit(img_size=shape[1:])
    return model


def _hf(library: Any, name: str, shape: Shape, classes: int, pretrained: bool) -> nn.Module:
    images = len(shape) == 3
    kind = "AutoModelForImageClassification" if images else "AutoModelForSequenceClassification"
    maker = getattr(library, kind)
    config = library.AutoConfig.from_pretrained(name, num_labels=classes)
    if images and not pretrained:
        config.num_channels = shape[0]
        config.image_size = shape[1] if shape[1] == shape[2] else tuple(shape[1:])
    made: nn.Module = (
        maker.from_pretrained(name, config=config, ignore_mismatched_sizes=True)
        if pretrained
        else maker.from_config(config)
    )
    return made.float().train()


SOURCES: dict[str, tuple[str, Callable[..., nn.Module]]] = {
    "timm": ("timm", _timm),
    "hf": ("transformers", _hf),
}
"""By prefix, which is also the name of the extra: the package, and a function to make a network."""


def freeze(network: nn.Module, last_layer: str | None = None) -> nn.Module:
    """Freeze all layers of a network but the last one: no gradients, and evaluation mode.

    >>> net = freeze(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
    >>> [name for name, p in net.named_parameters() if p.requires_grad], net[1].training
    (['2.weight', '2.bias'], False)
    """
    head = network.get_submodule(find_head(network, last_layer))
    network.requires_grad_(False).eval()
    head.requires_grad_(True)
    parts = [m for m in network.modules() if any(child is head for child in m.modules())]
    for module in parts:
        module.training = True  # else a learner would put the whole network into training mode
    return network
