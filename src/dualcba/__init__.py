"""Online continual learning with Dual Continual Bias Adaptors."""

from dualcba.data import Dataset, Transform, from_arrays, load_dataset
from dualcba.learner import Learner
from dualcba.methods import Method

__version__ = "0.1.0"

__all__ = ["Dataset", "Learner", "Method", "Transform", "from_arrays", "load_dataset"]
