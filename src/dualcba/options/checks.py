"""Checks of options whose accepted values depend on other options."""

from __future__ import annotations

from dualcba.errors import expected
from dualcba.options.choices import PLAIN_READOUTS
from dualcba.options.defaults import COSINE_DEFAULTS, KIND_DEFAULTS
from dualcba.options.definition import definitions
from dualcba.options.training import TrainingOptions


def check_learnt_parts(specific: str, agnostic: bool, prior: bool) -> None:
    """Raise if an adaptor has no part and no prior."""
    if specific == "none" and not agnostic and not prior:
        raise ValueError("specific is 'none' and agnostic is False, expected at least one part")


def check_logit_space(space: str, **options: bool) -> None:
    """Raise if one of these options is True and the space is not `logit`."""
    for name, value in options.items():
        if value and space != "logit":
            raise ValueError(expected(name, value, "False unless space is 'logit'"))


def _check_tracking(tracking: str, forward: str) -> None:
    """Raise if `tracking` selects some batches, but `forward` normalises batches together."""
    if tracking != "all" and forward != "split":
        raise ValueError(expected("tracking", tracking, f"'all' if forward is {forward!r}"))


def check_optimizer(options: TrainingOptions) -> None:
    """Raise unless the options of the optimiser and of the virtual step are compatible."""
    name, known = options.optimizer, definitions(TrainingOptions)
    for other in ("momentum", "nesterov") if name != "sgd" else ("beta1", "beta2"):
        value = getattr(options, other)
        if value != known[other].default:
            wanted = "no value: it is an option of " + ("sgd" if name != "sgd" else "adam")
            raise ValueError(expected(other, value, f"{wanted}, and optimizer is {name!r}"))
    if options.nesterov and not options.momentum:
        raise ValueError(expected("nesterov", True, "False if momentum is 0"))
    if options.beta1**2 >= options.beta2:
        raise ValueError(expected("beta2", options.beta2, f"above beta1² = {options.beta1**2:g}"))
    if options.lr * options.weight_decay >= 1:
        wanted = f"less than 1 / lr = {1 / options.lr:g}"
        raise ValueError(expected("weight_decay", options.weight_decay, wanted))
    if options.virtual == "sgd" and options.levels != "bi":
        wanted = f"'optimizer' if levels is {options.levels!r}: there is no virtual step"
        raise ValueError(expected("virtual", options.virtual, wanted))
    if options.virtual_lr is not None and options.virtual != "sgd":
        raise ValueError(expected("virtual_lr", options.virtual_lr, "None unless virtual is 'sgd'"))


UNUSED: dict[tuple[str, object], tuple[str, ...]] = {
    ("agnostic", False): ("counts", "divide"),
    ("levels", "joint"): ("outer_draw", "outer_loss", "update_order"),
}
"""For a value of an option, the adaptor's options that then have no effect."""


def _check_unused(options: TrainingOptions, kind: str | None) -> None:
    """Raise if an option that has no effect differs from its default."""
    known, own = definitions(TrainingOptions), KIND_DEFAULTS.get(kind or "", {})
    for (name, value), unused in UNUSED.items():
        for other in unused if getattr(options, name) == value else ():
            given, usual = getattr(options, other), own.get(other, known[other].default)
            if given not in (None, usual):
                raise ValueError(expected(other, given, f"{usual!r} if {name} is {value!r}"))


def _check_while_empty(while_empty: str, stores_in_steps: bool) -> None:
    """Raise if steps wait for the memory, but the method fills it only at the end of a task."""
    if while_empty != "train" and not stores_in_steps:
        wanted = "'train': the method fills its memory when a task ends"
        raise ValueError(expected("while_empty", while_empty, wanted))


def _check_head_options(options: TrainingOptions, method: str, own_head: bool) -> None:
    """Raise unless the options of the head apply; `own_head`: the method brings its own head."""
    if options.head == "cosine" and own_head:
        raise ValueError(expected("head", options.head, f"'linear': {method} has its own head"))
    for name in COSINE_DEFAULTS if options.head != "cosine" else ():
        if (value := getattr(options, name)) is not None:
            raise ValueError(expected(name, value, f"no value: the head is {options.head}"))


def _check_readout(readout: str, kind: str | None) -> None:
    """Raise if the read-out needs an adaptor and the method has none."""
    if readout == "adapted" and kind is None:
        wanted = f"{PLAIN_READOUTS} without an adaptor"
        raise ValueError(expected("readout", readout, wanted))


def check_together(
    options: TrainingOptions,
    kind: str | None,
    *,
    method: str,
    own_head: bool,
    stores_in_steps: bool,
) -> None:
    """Raise unless the options of a learner or a run are compatible with each other and the method.

    `kind` is the kind of adaptor; `own_head` and `stores_in_steps` are attributes of the method.
    """
    check_adaptor_parts(options, kind)
    _check_head_options(options, method, own_head)
    check_optimizer(options)
    _check_tracking(options.tracking, options.forward)
    _check_readout(options.readout, kind)
    _check_while_empty(options.while_empty, stores_in_steps)


def check_adaptor_parts(options: TrainingOptions, kind: str | None) -> None:
    """Raise unless the options of an adaptor of this kind are compatible with each other."""
    _check_unused(options, kind)
    if options.agnostic_from is not None and not options.agnostic:
        wanted = "None if agnostic is False"
        raise ValueError(expected("agnostic_from", options.agnostic_from, wanted))
    check_learnt_parts(options.specific, options.agnostic, options.prior)
    check_logit_space(options.space, strength=options.strength, prior=options.prior)
    trained = options.agnostic and options.agnostic_from is None
    if options.freeze_after is not None and not trained:
        wanted = "None if no class-agnostic part is trained"
        raise ValueError(expected("freeze_after", options.freeze_after, wanted))
