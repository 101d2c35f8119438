"""Checks of a GPU node's machine for `weft doctor`: small functions that return a finding and its
remedy.

In: driver, device nodes, CDI, NRI, the kubelet's sockets, processes that see GPUs (`machine.py`).
Out: the cluster as the API shows it (`cluster/reading`); what the agent does about it; how findings
are printed (`cli/doctor.py`).
"""
