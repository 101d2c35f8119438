"""Writes what people read: the report's page, its figures and tables.

In: results and summaries. Out: HTML that loads nothing, SVG, PNG and PDF, the same bytes for the
same results.
"""
