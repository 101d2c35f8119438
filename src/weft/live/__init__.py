"""The engine on a live cluster: what the API shows becomes events, commands become writes.

In: what a running cluster's objects mean to the engine (nodes, pods, volumes, constraints), the
one ledger of a process, binding with its outcomes, what people are told. Out: how requests come in
(`scheduler/` and `extender/` are hosts), how the API is spoken to (`kube/`), and every decision
(`engine/`).
"""
