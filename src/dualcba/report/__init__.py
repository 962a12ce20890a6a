"""Tables, figures and the report of results."""

from dualcba.report.files import render
from dualcba.report.html import write_report
from dualcba.report.summary import summary

__all__ = ["render", "summary", "write_report"]
