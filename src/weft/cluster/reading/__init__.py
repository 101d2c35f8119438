"""Reads a cluster through its API for `weft status`, `weft inspect` and `weft doctor`.

In: nodes, pods and agents, read once for all questions (`reading.py`); promised and used shares of
each GPU; the leader; findings with their remedies, one small function each. Out: what a scheduler
makes of the same objects (`cluster/state`, `cluster/adoption`); a node's own machine
(`node/doctor`); printing (`cli`)."""
