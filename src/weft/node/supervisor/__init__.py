"""Keeps the agent running on its node, and containers from starting while it does not run.

`python -m weft.node.supervisor … -- COMMAND`, which is what `weft agent --supervised` becomes. In:
the agent's command, the runtime's NRI socket, a file to lock. Out: what the agent does.

A process of its own, small and soon there: it imports the runtime's protocol and nothing of what
the agent needs (no HTTP, no gRPC, no command line).
"""
