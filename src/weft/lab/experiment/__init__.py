"""Experiments: plans their runs, carries them out, compares results, and writes the report.

    spec/ a file, its cells ─▶ run/ cells, stored ─▶ statistics/ who wins ─▶ pages/ the report

A cell is one run: one scheduler with one seed's workload at one level of each axis. Contents: an
experiment's file, many runs in parallel processes, means and intervals, the report. Not here: a
single run (`lab/simulate/`), and starting from a shell (`cli/`)."""
