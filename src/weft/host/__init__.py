"""Processes: one shell, and each process as the list of its parts.

In: starting, restarting and closing parts, the pages that each process serves, and the composition
of the scheduler with its extender, the agent, shadow runs and the webhook. Out: what the parts do
(`cluster/`, `node/`), and options and exit codes (`cli/`). Parts do not depend on the shell: they
have a `run`, or a `start` and a `close`.
"""
