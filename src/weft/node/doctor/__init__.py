"""Checks of a GPU node's machine for `weft doctor`: small functions that return a finding and its
remedy.

Contents: checks of the driver, device nodes, CDI, NRI, the kubelet's sockets, and processes that
see GPUs (`machine.py`). Not here: checks of the cluster as the API shows it (`cluster/reading`),
repairs, and how findings are printed (`cli/doctor.py`).
"""
