"""Configures containerd to start no container with a share while the agent is away (to fail
closed), if the operator allows that; and restores containerd's configuration.

Contents: finding the containerd process behind a socket, writing one drop-in file, restarting
containerd. Not here: the test of whether containerd fails closed (`node/agent/fail_closed.py`), and
other runtimes (for CRI-O, `how_to_close` returns the lines to configure).
"""
