"""The container runtime's service for kubelets (CRI), as far as it is used: the trial of whether a
container starts whose plugin is away.

In: its messages, and that trial. Out: what is made of its outcome (`node/agent/fail_closed.py`).
"""
