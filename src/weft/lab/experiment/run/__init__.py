"""How an experiment's cells are run, on several processes or machines, and where they are kept.

In: a specification and its data. Out: a `CellResult` a cell, in memory or in a folder of runs.
"""
