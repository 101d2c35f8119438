"""Decides which pod gets which GPUs. Pure: no clock, no I/O, no randomness of its own.

Contents: which pod holds which GPUs (`ledger/`), the interface of policies (`framework/`), the
policies (`policies/`), preemption (`preempt/`), rules about other pods and volumes
(`constraints/`), the scheduling queue and cycle (`engine/`), explanations for users (`explain/`),
and decisions files (`record/`). Not here: the Kubernetes API (`kube/`), the collection of metrics
(`telemetry/`), and the processes that run this code (`cluster/`, `lab/`).
"""
