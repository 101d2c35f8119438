"""Decides which pod gets which GPUs. Pure: no clock, no I/O, no randomness of its own.

In: who holds what (`ledger/`), what a policy sees and may answer (`framework/`), the policies,
the state machine that drives them (`engine/`), reasons for people (`explain/`), and decisions on
file (`record/`).
Out: the Kubernetes API (`kube/`), where metrics come from (`telemetry/`), and every host.
"""
