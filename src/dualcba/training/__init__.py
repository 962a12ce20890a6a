"""One training step and what it needs: draws, forwards, tasks, precision, the watch on the loss."""
