"""Configures containerd to fail closed without the agent, if the operator allows it, and undoes
that.

In: the containerd process behind a socket, its configuration. Out: one drop-in file, a restart. Not
here: whether containerd fails closed (`node/agent/fail_closed.py` tests it), other runtimes (for
CRI-O, `how_to_close` has the lines to configure).
"""
