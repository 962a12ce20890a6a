"""The training step and its parts: draws, forward passes, tasks, precision, loss monitor, state."""
