"""A finished comparison, and the files it is written to."""

from parity.report.report import Report

__all__ = ["Report"]
