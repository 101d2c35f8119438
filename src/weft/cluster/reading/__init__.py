"""Reads a cluster through its API for `weft status`, `weft inspect` and `weft doctor`.

The package reads nodes, pods and agents once for all checks (`reading.py`), finds the leader and
the reserved and used shares of each GPU, and makes findings with remedies, one function each.
Elsewhere: how a scheduler reads the same objects (`cluster/state`, `cluster/adoption`), checks on
the node itself (`node/doctor`), and printing (`cli`)."""
