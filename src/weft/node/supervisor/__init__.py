"""Keeps the agent running on its node, and containers from starting while it does not run.

`python -m weft.node.supervisor … -- COMMAND`, which `weft agent --supervised` executes. In: the
agent's command, the runtime's NRI socket, a lock file. Out: what the agent does. It is a process of
its own, small and quick to start: it imports the runtime's protocol and nothing else that the agent
needs (no HTTP, no gRPC, no command line).
"""
