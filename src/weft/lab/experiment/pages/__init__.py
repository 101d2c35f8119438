"""Writes the report's page, its figures and tables.

Contents: HTML without external resources, SVG, PNG and PDF, from results and summaries; equal
results give equal bytes. Not here: computing the numbers (`lab/experiment/statistics/`)."""
