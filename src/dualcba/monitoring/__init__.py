"""Monitor a learner during training: numbers, a terminal panel, Prometheus text."""

from __future__ import annotations

from dualcba.monitoring.files import read_watch, watch_files
from dualcba.monitoring.monitor import Monitor
from dualcba.monitoring.prometheus import prometheus_text

__all__ = ["Monitor", "prometheus_text", "read_watch", "watch_files"]
