"""Keeps the agent running on its node, and containers from starting while it does not run.

`weft agent --supervised` executes `python -m weft.node.supervisor … -- COMMAND`. Contents:
restarting the agent's command, the guard at the runtime's NRI socket, the lock file. Not here: what
the agent does. The supervisor is a process of its own, small and quick to start: of what the agent
needs, it imports only the runtime's protocol (no HTTP, no gRPC, no command line).
"""
