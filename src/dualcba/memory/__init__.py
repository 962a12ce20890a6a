"""Rehearsal memories: reservoir, class-balanced, herding."""

from dualcba.memory.balanced import Balanced
from dualcba.memory.base import Indices, Memory
from dualcba.memory.herding import Herding, herd
from dualcba.memory.reservoir import Reservoir, last_wins

__all__ = ["Balanced", "Herding", "Indices", "Memory", "Reservoir", "herd", "last_wins"]
