"""What methods and scores are called in a report, and what each score means."""

from __future__ import annotations

from dataclasses import dataclass

from dualcba.methods import METHODS

MISSING = "–"
KINDS = {"": "", "cba": "-CBA", "dual-cba": "-Dual-CBA"}


def split_method(name: str) -> tuple[str, str]:
    """A method's base and adaptor, whether or not the method is known here.

    >>> split_method("er-dual-cba"), split_method("er-cba"), split_method("mine")
    (('er', 'dual-cba'), ('er', 'cba'), ('mine', ''))
    """
    for kind in ("dual-cba", "cba"):
        if name.endswith(f"-{kind}"):
            return name.removesuffix(f"-{kind}"), kind
    return name, ""


def method_title(name: str) -> str:
    """As the paper writes it.

    >>> method_title("derpp"), method_title("derpp-dual-cba"), method_title("mine-cba")
    ('DER++', 'DER-Dual-CBA', 'mine-CBA')
    """
    base, kind = split_method(name)
    title = (base in METHODS and METHODS[base].title) or base
    return (title.rstrip("+") if kind else title) + KINDS[kind]


def count(number: int, what: str) -> str:
    """So many of something.

    >>> count(1, "run"), count(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}{'s' * (number != 1)}"


def seeds(*counts: int) -> str:
    """How many seeds stand behind what is shown together.

    >>> seeds(1), seeds(3), seeds(3, 1, 3)
    ('1 seed', '3 seeds', '1/3 seeds')
    """
    numbers = sorted(set(counts))
    return f"{'/'.join(map(str, numbers))} seed{'s' * (numbers != [1])}"


def averaged(count: int) -> str:
    """What is shown without a band.

    >>> averaged(1), averaged(3)
    ('one seed', 'mean over 3 seeds')
    """
    return "one seed" if count == 1 else f"mean over {seeds(count)}"


@dataclass(frozen=True)
class Score:
    """A score's title, whether more is better, its definition; what is a cost has no norm."""

    title: str
    up: bool
    meaning: str
    cost: bool = False
    digits: int = 1
    """Behind the point, where it is shown."""

    @property
    def arrowed(self) -> str:
        """The title with the direction of better."""
        return f"{self.title} {'↑' if self.up else '↓'}"


SCORES = {
    "acc": Score("ACC", True, "mean accuracy over all tasks at the end of the stream"),
    "fm": Score(
        "FM",
        False,
        "forgetting: mean over all but the last task of the best accuracy at a task's end minus "
        "the final accuracy",
    ),
    "fm_paper": Score(
        "FM as written",
        False,
        "forgetting by the paper's formula: mean over all tasks, best accuracy over the whole run",
    ),
    "acc_auc": Score(
        "AUC", True, "any-time accuracy: mean over the whole stream of the accuracy on tasks so far"
    ),
    "acc_auc_last": Score("AUC, last task", True, "the same over the points of the last task"),
    "min_acc": Score(
        "min-ACC",
        True,
        "stability gap: mean over old tasks of the lowest any-time accuracy after the task was "
        "learnt",
    ),
    "wc_acc": Score(
        "WC-ACC",
        True,
        "worst case: 1/T of the last task's accuracy and the rest of min-ACC",
    ),
    "bwt": Score(
        "BWT", True, "backward transfer: mean change of a task's accuracy from learnt to the end"
    ),
    "fwt": Score(
        "FWT",
        True,
        "forward transfer: mean accuracy on a task just before it is learnt, above the untrained "
        "network's",
    ),
    "parameters": Score(
        "parameters, M", False, "millions of parameters, the adaptor's among them", True, 3
    ),
    "gpu_memory": Score(
        "GPU memory, MB", False, "the most allocated at once, over what was held before", True, 0
    ),
    "seconds_per_task": Score(
        "s per task", False, "seconds of training per task on the host's clock", True, 2
    ),
}


def score(name: str) -> Score:
    """A score by its name; `task3` is the accuracy of the third task at the end.

    >>> score("fm").arrowed, score("task3").title
    ('FM ↓', 'task 3')
    """
    if name in SCORES:
        return SCORES[name]
    number = name.removeprefix("task")
    if number.isdigit():
        return Score(f"task {number}", True, f"accuracy of task {number} at the end")
    return Score(name.replace("_", " "), True, name)


NORMS = {"bn": "BN", "ibn": "IBN"}


def slug(title: str) -> str:
    """A title as the name of a file or of a place in a page.

    >>> slug("Any-time, M = 100")
    'any-time-m-100'
    """
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in title.lower()).split()
    return "-".join(words) or "part"
