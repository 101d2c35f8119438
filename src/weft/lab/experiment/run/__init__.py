"""Runs an experiment's cells, in several processes or on several machines, and stores their
results.

In: a specification and its data. Out: a `CellResult` per cell, in memory or in a folder of runs."""
