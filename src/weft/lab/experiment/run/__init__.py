"""Runs an experiment's cells, in several processes or on several machines, and stores their
results.

Contents: computing a `CellResult` for each cell of a specification, in memory or in a folder of
runs. Not here: comparing them (`lab/experiment/statistics/`)."""
