"""Writes the report's page, its figures and tables.

In: results and summaries. Out: HTML without external resources, SVG, PNG and PDF; equal results
give equal bytes."""
