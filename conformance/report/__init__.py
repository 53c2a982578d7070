"""A check's outcome as an object, as JSON, in the terminal and as one page."""

from conformance.report.page import write_html
from conformance.report.report import Report, TextTrial
from conformance.report.terminal import print_report

__all__ = ["Report", "TextTrial", "print_report", "write_html"]
