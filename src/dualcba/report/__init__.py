"""Tables of results."""

from dualcba.report.terminal import summary

__all__ = ["summary"]
