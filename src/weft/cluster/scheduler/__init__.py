"""The scheduler process: the only one that decides on its own.

Contents: explanations, metrics and the leader's label. Not here: decisions (`core/engine/`), the
live cluster (`cluster/control/`), the lease itself (`kube/`), and the composition of the process
(`host/`).
"""
