"""The report: one HTML page that needs no network."""

from pesky.lab.report.page import report_page

__all__ = ["report_page"]
