"""Methods that wrap other methods, for example to add distillation from a teacher to any base.

The name of a wrapped method is `<base>+<wrapper>`, as in `er+mkd` or `er-ace+ccl-dc`. The suffix of
a bias adaptor comes last: `er+mkd-dual-cba`. There is at most one wrapper, and the loss of its base
must be a sum of terms. `around` makes a class for such a name. Its options are those of the wrapper
and those of the base with the prefix `base_`, as in `base_alpha`. In Python,
`MKD(ERACE(), alpha=0.01)` makes the same method.

A wrapper delegates to the base whatever it does not define itself, so it defines only what it adds:
terms, views, a state, predictions. Batches have the views of both (`Method.make_views`). Memory
draws, stored columns and the memory are those of the base.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn

from dualcba.methods.base import Context, Method
from dualcba.methods.scorers import Logits, MeanScores, WithFeatures, scorer_of

PREFIX = "base_"
"""The prefix of the options of the wrapped method."""

COPIED = (
    "draws", "chosen", "extra_draw", "columns", "repeats", "rereads_task", "one_per_class",
    "single_pass", "needs_boundaries", "own_head", "stores_in_steps", "previews_task", "merge",
    "held_out",
)  # fmt: skip
"""The attributes that a wrapper copies from the wrapped method."""

DELEGATED = (
    "make_memory", "make_transform", "make_views", "make_draw_transforms", "choose", "observe",
    "terms", "outer_terms", "noise", "extra_step", "after_step", "begin_task", "preview_task",
    "exemplar_counter", "mixed", "end_task", "predicting", "networks", "before_scores", "scores",
    "outputs",
)  # fmt: skip
"""The functions that a wrapper delegates to the wrapped method, unless it defines its own."""


class Wrapper(Method):
    """A method that wraps another one, and delegates to it whatever it does not define itself."""

    wrapped: type[Method]
    """The class of the wrapped method; only in classes that `around` makes."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        for name in COPIED:
            setattr(self, name, getattr(method, name))

    def bind(self, context: Context) -> None:
        """Bind the wrapped method too."""
        super().bind(context)
        self.method.bind(context)

    def scorer(self) -> nn.Module:
        """Return the module of the wrapped method."""
        return scorer_of(self.method)


def _delegate(name: str) -> Callable[..., Any]:
    """Return a function that calls the function of this name of the wrapped method."""

    @wraps(getattr(Method, name))
    def call(self: Wrapper, *args: Any, **named: Any) -> Any:
        return getattr(self.method, name)(*args, **named)

    return call


for _name in DELEGATED:
    setattr(Wrapper, _name, _delegate(_name))


def outputs_scorer(method: Method) -> WithFeatures:
    """Return a module with the same logits and features as `method.outputs`.

    For a method that overrides `outputs`, it is the module that `scorer` returns.
    """
    while isinstance(method, Wrapper) and type(method).outputs is Wrapper.outputs:
        method = method.method
    if type(method).outputs is Method.outputs:
        return Logits(method.context.network)
    scorer = scorer_of(method)
    first = scorer.members[0] if isinstance(scorer, MeanScores) else scorer
    if not isinstance(scorer, WithFeatures) or not isinstance(first, Logits):
        name, given = type(method).__name__, type(scorer).__name__
        wanted = "Logits, for snapshots and exports with class means"
        raise ValueError(f"the scorer of the method {name} is {given}, expected {wanted}")
    return scorer


def has_own_scores(method: Method | type[Method]) -> bool:
    """Return whether a method, or the method that it wraps, overrides `scores`.

    >>> from dualcba.methods import parse_method
    >>> [has_own_scores(parse_method(name)[0]) for name in ("er", "er+mkd", "er+ccl-dc", "bic")]
    [False, False, True, True]
    """
    kind = method if isinstance(method, type) else type(method)
    if not issubclass(kind, Wrapper) or kind.scores is not Wrapper.scores:
        return getattr(kind, "scores", None) is not Method.scores
    return has_own_scores(method.method if isinstance(method, Wrapper) else kind.wrapped)


def around(base: type[Method], wrapper: type[Wrapper]) -> type[Method]:
    """Return the class of a wrapper around a base, with the options of both; classes are cached.

    >>> from dualcba.methods.derpp import DERpp
    >>> from dualcba.methods.mkd import MKD
    >>> around(DERpp, MKD)(alpha=0.02, base_alpha=0.5).method.alpha
    0.5
    """
    if (base, wrapper) not in _made:
        _made[base, wrapper] = _make(base, wrapper)
    return _made[base, wrapper]


_made: dict[tuple[type[Method], type[Wrapper]], type[Method]] = {}


def _make(base: type[Method], wrapper: type[Wrapper]) -> type[Method]:
    def init(self: Any, **options: Any) -> None:
        inner = {k: v for k, v in options.items() if k.startswith(PREFIX)}
        own = {k: v for k, v in options.items() if k not in inner}
        wrapper.__init__(self, _make_base(base, inner), **own)

    def reduce(self: Any) -> tuple[Any, ...]:
        return _blank, (base, wrapper), self.__dict__

    own = [p for p in _parameters(wrapper) if p.name != "method"]
    inner = [p.replace(name=PREFIX + p.name) for p in _parameters(base)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(kind=keyword) for p in (*own, *inner)]
    init.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    members = {name: getattr(base, name) for name in COPIED} | {"wrapped": base}
    members |= {"__init__": init, "__reduce__": reduce}
    members |= {"__doc__": wrapper.__doc__, "__module__": wrapper.__module__}
    return type(f"{base.__name__}{wrapper.__name__}", (wrapper,), members)


def _make_base(base: type[Method], given: dict[str, Any]) -> Method:
    """Return the wrapped method; errors name its options with the prefix, as they were given."""
    options = {name.removeprefix(PREFIX): value for name, value in given.items()}
    try:
        return base(**options)
    except ValueError as error:
        named = str(error).partition(" ")[0] in options
        raise ValueError(PREFIX * named + str(error)) from None


def _blank(base: type[Method], wrapper: type[Wrapper]) -> Method:
    """Return an instance without attributes; pickle cannot find the class by its name.

    Pickles refer to this function, so it must not be renamed.
    """
    made = around(base, wrapper)
    return made.__new__(made)


def _parameters(method: type[Method]) -> list[inspect.Parameter]:
    """Return the options of a method, which are the arguments of its constructor."""
    parameters = inspect.signature(method.__init__).parameters.values()
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [p for p in parameters if p.name != "self" and p.kind not in kinds]
