"""Runs an experiment's cells, on several processes or machines, and keeps what came of them.

In: a specification and its data. Out: a `CellResult` a cell, in memory or in a folder of runs.
"""
