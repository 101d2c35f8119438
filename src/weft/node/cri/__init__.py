"""The part of the container runtime interface (CRI) that Weft uses: a trial of whether a container
starts while its required plugin is away.

In: its messages, and that trial. Out: the use of its outcome (`node/agent/fail_closed.py`).
"""
