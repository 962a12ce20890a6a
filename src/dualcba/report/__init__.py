"""Tables, figures and the report of results."""

from dualcba.report.experiment_files import render
from dualcba.report.html import write_report
from dualcba.report.tables.terminal import summary

__all__ = ["render", "summary", "write_report"]
