"""One reading of a cluster as its API shows it, and what people are told of it.

In: nodes, pods and agents, read once for each question (`reading.py`); what is promised of each GPU
and used of it; who leads; findings with their remedies, a small function each.
Out: what a scheduler makes of the same objects (`cluster/state`, `cluster/adoption`); a node's own
machine (`node/doctor`); how any of it is printed (`cli`).
"""
