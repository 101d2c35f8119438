"""The scheduler process: the only one that decides on its own.

In: the life of the process (follow, lead, drain), the leader's label, and its own HTTP pages. Out:
deciding (`core/engine/`), the live cluster (`cluster/`), the lease itself (`kube/`), and the other
processes, which are composed in `host/`.
"""
