"""The report: one HTML page that needs no network."""

from pesky.lab.pages.report.page import report_page

__all__ = ["report_page"]
