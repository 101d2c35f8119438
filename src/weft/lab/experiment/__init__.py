"""Grids of runs, their statistics and their figures.

In: many runs in parallel processes, means and intervals, the report. Out: what one run does
(`lab/simulate/`) and how it is started from a shell (`cli/`).
"""
