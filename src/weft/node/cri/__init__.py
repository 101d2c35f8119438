"""Tests through the container runtime interface (CRI) whether the runtime starts a container while
its required NRI plugin is away.

Contents: the CRI messages that this trial needs, and the trial itself (`trial.py`). Not here: what
the agent does with the trial's outcome (`node/agent/fail_closed.py`).
"""
