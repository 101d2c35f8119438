"""Checks of `weft doctor`: one small function each, which returns what it found and the remedy.

In: a node's machine (`machine.py`), the cluster as the API shows it (`cluster.py`).
Out: what the agent does about it; how findings are printed (`cli/doctor.py`).
"""
