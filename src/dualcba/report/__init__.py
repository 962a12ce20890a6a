"""Tables, figures and the report of results."""

from dualcba.report.html import write_report
from dualcba.report.terminal import summary
from dualcba.report.writing import render

__all__ = ["render", "summary", "write_report"]
