"""The scheduler process: the only one that decides on its own.

The package holds explanations, metrics and the leader's label. Decisions are made in
`core/engine/`; the live cluster is in `cluster/control/`, the lease itself in `kube/`, and `host/`
composes the process.
"""
