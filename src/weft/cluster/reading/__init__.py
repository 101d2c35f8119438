"""Reads a cluster through its API for `weft status`, `weft inspect` and `weft doctor`.

In: nodes, pods and agents, read once for all questions (`reading.py`); reserved and used shares of
each GPU; the leader; findings with their remedies, one small function each. Out: a scheduler's
reading of the same objects (`cluster/state`, `cluster/adoption`); checks on the node itself
(`node/doctor`); printing (`cli`)."""
