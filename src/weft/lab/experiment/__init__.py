"""Experiments: grids of runs, their statistics and their figures.

    spec (a file) ─▶ plan (cells) ─▶ execution ─▶ runner: one cell ─▶ store ─▶ comparison

In: what a file describes, many runs in parallel processes, means and intervals, the report.
Out: what one run does (`lab/simulate/`) and how it is started from a shell (`cli/`).
"""
