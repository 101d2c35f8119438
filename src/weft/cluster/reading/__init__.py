"""Reads a cluster through its API for `weft status`, `weft inspect` and `weft doctor`.

Contents: reading nodes, pods and agents once for all checks (`reading.py`), finding the leader and
the reserved and used shares of each GPU, and findings with remedies, one function each. Not here:
how a scheduler reads the same objects (`cluster/state`, `cluster/adoption`), checks on the node
itself (`node/doctor`), and printing (`cli`)."""
