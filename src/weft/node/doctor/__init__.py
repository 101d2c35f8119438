"""Checks of a GPU node's machine for `weft doctor`: one small function each, which returns what it
found and the remedy.

In: driver, device nodes, CDI, NRI, the kubelet's sockets, who sees GPUs (`machine.py`).
Out: the cluster as the API shows it (`cluster/reading`); what the agent does about it; how findings
are printed (`cli/doctor.py`).
"""
