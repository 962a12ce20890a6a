"""Rehearsal memories: reservoir, class-balanced, exemplars; and draws balanced over classes."""

from dualcba.memory.balanced import Balanced
from dualcba.memory.base import Indices, Memory
from dualcba.memory.exemplars import Exemplars
from dualcba.memory.herding import Herding, herd
from dualcba.memory.pool import Pool
from dualcba.memory.reservoir import Reservoir, last_wins
from dualcba.memory.shares import TaskShares

__all__ = [
    "Balanced",
    "Exemplars",
    "Herding",
    "Indices",
    "Memory",
    "Pool",
    "Reservoir",
    "TaskShares",
    "herd",
    "last_wins",
]
