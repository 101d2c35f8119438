"""Experiments: plans their runs, carries them out, compares results, and writes the report.

    spec/ a file, its cells ─▶ run/ one cell each, kept ─▶ statistics/ who wins ─▶ pages/ the report

In: what a file describes, many runs in parallel processes, means and intervals, the report.
Out: what one run does (`lab/simulate/`) and how it is started from a shell (`cli/`).
"""
