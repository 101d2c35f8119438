"""The scheduler process: the only one that decides on its own.

In: explanations, metrics and the leader's label. Out: deciding (`core/engine/`), the live cluster
(`cluster/control/`), the lease itself (`kube/`), and the process, which is composed in `host/`.
"""
