"""Tables of results."""

from dualcba.report.table import summary

__all__ = ["summary"]
