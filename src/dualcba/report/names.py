"""Titles of methods, scores and statistics in a report, and the definition of each score."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dualcba.errors import unknown
from dualcba.methods import METHODS, WRAPPERS
from dualcba.options import CBA

MISSING = "–"
KINDS = {kind: kind and "-" + kind.title().replace("Cba", "CBA") for kind in ("", *CBA)}
"""The suffix of a method's title for each kind of adaptor."""

STATISTICS = {"bn": "BN", "ibn": "IBN"}
"""The statistics that normalisation layers use in evaluation."""


def split_method(name: str) -> tuple[str, str]:
    """Split a method's name into base method and adaptor; unknown methods are accepted.

    >>> split_method("er-dual-cba"), split_method("er-cba"), split_method("mine")
    (('er', 'dual-cba'), ('er', 'cba'), ('mine', ''))
    """
    for kind in sorted(CBA, key=len, reverse=True):
        if name.endswith(f"-{kind}"):
            return name.removesuffix(f"-{kind}"), kind
    return name, ""


def method_title(name: str) -> str:
    """Return a method's name as the paper writes it.

    >>> method_title("derpp"), method_title("derpp-dual-cba"), method_title("mine-cba")
    ('DER++', 'DER-Dual-CBA', 'mine-CBA')
    >>> method_title("er-ace+mkd"), method_title("er+mkd-cba")
    ('ER-ACE + MKD', 'ER + MKD-CBA')
    """
    base, kind = split_method(name)
    first, plus, wrapper = base.partition("+")
    title = (first in METHODS and METHODS[first].title) or first
    if plus:
        title += " + " + ((wrapper in WRAPPERS and WRAPPERS[wrapper].title) or wrapper)
    return (title.rstrip("+") if kind else title) + KINDS[kind]


def count(number: int, what: str) -> str:
    """Return a number with its noun in singular or plural.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def seeds(*counts: int) -> str:
    """Return the numbers of seeds behind values that are shown together.

    >>> seeds(1), seeds(3), seeds(3, 1, 3)
    ('1 seed', '3 seeds', '1/3 seeds')
    """
    numbers = sorted(set(counts))
    return f"{'/'.join(map(str, numbers))} seed{'s' * (numbers != [1])}"


def spread_over(*counts: int) -> str:
    """Describe a mean and its interval by the number of seeds.

    >>> spread_over(1), spread_over(3, 3)
    ('1 seed, so no interval', 'mean ± 95 % interval over 3 seeds')
    """
    text = seeds(*counts)
    return f"{text}, so no interval" if set(counts) == {1} else f"mean ± 95 % interval over {text}"


def averaged(count: int) -> str:
    """Describe a mean without an interval by the number of seeds.

    >>> averaged(1), averaged(3)
    ('one seed', 'mean over 3 seeds')
    """
    return "one seed" if count == 1 else f"mean over {seeds(count)}"


@dataclass(frozen=True)
class ScoreInfo:
    """The title of a score, whether higher is better, and its definition."""

    title: str
    up: bool
    meaning: str
    fixed: bool = False
    """Whether it does not depend on the statistics, such as a cost of training."""

    digits: int = 1
    """Decimal places in tables."""

    @property
    def arrowed(self) -> str:
        """The title with an arrow that points to better values."""
        return f"{self.title} {'↑' if self.up else '↓'}"


SCORES = {
    "acc": ScoreInfo("ACC", True, "mean accuracy over all tasks at the end of the stream"),
    "fm": ScoreInfo(
        "FM",
        False,
        "forgetting: best accuracy of a task at any task's end minus its final accuracy, mean over "
        "all but the last task",
    ),
    "relative_fm": ScoreInfo(
        "relative FM",
        False,
        "the same as FM, but in percent of each task's best accuracy",
    ),
    "fm_paper": ScoreInfo(
        "FM as written",
        False,
        "FM by the paper's formula: mean over all tasks, with the best accuracy of the whole run",
    ),
    "acc_auc": ScoreInfo(
        "AUC", True, "any-time accuracy: mean accuracy on the tasks so far, over the whole stream"
    ),
    "acc_auc_last": ScoreInfo(
        "AUC, last task", True, "the same as AUC, but only during the last task"
    ),
    "min_acc": ScoreInfo(
        "min-ACC",
        True,
        "stability gap: lowest any-time accuracy of a task after its own end, mean over old tasks",
    ),
    "wc_acc": ScoreInfo(
        "WC-ACC",
        True,
        "worst case: accuracy of the last task with weight 1/T, plus min-ACC with weight 1 − 1/T",
    ),
    "bwt": ScoreInfo(
        "BWT",
        True,
        "backward transfer: mean change of a task's accuracy from its own end to the end of the "
        "stream",
    ),
    "fwt": ScoreInfo(
        "FWT",
        True,
        "forward transfer: mean accuracy on a task just before it is learnt, minus the accuracy of "
        "the untrained network",
    ),
    "balanced_acc": ScoreInfo(
        "balanced ACC", True, "mean recall over classes at the end of the stream"
    ),
    "learning_acc": ScoreInfo(
        "ACC after learning", True, "mean accuracy of a task at its own end, over all tasks"
    ),
    "newest": ScoreInfo(
        "newest task",
        True,
        "mean accuracy of a task at its own end, over all but the first task",
    ),
    "newest_last": ScoreInfo(
        "last task", True, "accuracy on the last task at the end of the stream"
    ),
    "newest_recall": ScoreInfo(
        "lowest recall, last task",
        True,
        "recall at the end of the stream of the worst class of the last task",
    ),
    "prequential": ScoreInfo(
        "prequential",
        True,
        "accuracy on arriving batches before they are trained on; recorded by --record prequential",
    ),
    "task_aware_acc": ScoreInfo(
        "ACC, task known",
        True,
        "ACC if predictions are restricted to the classes of a sample's task; recorded by --record "
        "task-aware",
    ),
    "ncm_acc": ScoreInfo(
        "ACC, class mean",
        True,
        "ACC of a nearest-class-mean classifier on the memory's features; recorded by --record "
        "neighbours",
    ),
    "nn_acc": ScoreInfo(
        "ACC, nearest",
        True,
        "ACC of a nearest-neighbour classifier on the memory's features; recorded by --record "
        "neighbours",
    ),
    "lda_acc": ScoreInfo(
        "ACC, discriminant",
        True,
        "ACC of a linear discriminant on the memory's features; recorded by --record neighbours",
    ),
    "random_acc": ScoreInfo(
        "ACC, random features",
        True,
        "ACC of a linear discriminant on random features of the pixels, which needs no network and "
        "no memory; recorded by --record random-features",
        True,
    ),
    "relative_cost": ScoreInfo(
        "relative cost",
        False,
        "cost C of a step relative to ER; in a real-time run, a method trains on one batch in C",
        True,
        2,
    ),
    "relative_time": ScoreInfo(
        "time, ER = 1",
        False,
        "training time relative to ER in the same table, with the same seed and device; "
        "comparable only if runs were made one at a time",
        True,
        2,
    ),
    "parameters": ScoreInfo(
        "parameters, M", False, "millions of parameters, including the adaptor", True, 3
    ),
    "gpu_memory": ScoreInfo(
        "GPU memory, MB", False, "peak allocation minus the allocation before the run", True, 0
    ),
    "seconds_per_task": ScoreInfo(
        "s per task", False, "seconds of training per task (wall clock)", True, 2
    ),
}


def score_info(name: str) -> ScoreInfo:
    """Return the description of a score; `task3` is the final accuracy of the third task.

    >>> score_info("fm").arrowed, score_info("task3").title
    ('FM ↓', 'task 3')
    """
    if name in SCORES:
        return SCORES[name]
    number = name.removeprefix("task")
    if number.isdigit():
        return ScoreInfo(f"task {number}", True, f"accuracy of task {number} at the end")
    return ScoreInfo(name.replace("_", " "), True, name)


def check_scores(asked: Iterable[str]) -> None:
    """Raise a ValueError if a name is not that of a score.

    >>> check_scores(["acc", "task3", "balanced"])
    Traceback (most recent call last):
    ...
    ValueError: unknown score 'balanced', did you mean 'balanced_acc'? (known: acc, fm, ...)
    """
    for name in asked:
        if name not in SCORES and not re.fullmatch("task[0-9]+", name):
            raise ValueError(unknown("score", name, SCORES))


def slug(title: str) -> str:
    """Return a title as a name for a file or an anchor.

    >>> slug("Any-time, M = 100"), slug("Größe")
    ('any-time-m-100', 'größe')
    """
    words = "".join(c if c.isalnum() else " " for c in title.lower()).split()
    return "-".join(words) or "part"
