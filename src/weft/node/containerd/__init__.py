"""Configures containerd to wait for the agent, where the operator allows it, and puts that back.

In: containerd's process behind its socket, its configuration. Out: one file among its drop-ins, a
restart. Not here: whether it waits (`node/agent/fail_closed.py` tries that), other runtimes (CRI-O:
`how_to_close` has the lines).
"""
