"""Builds and runs Weft's processes from their parts: scheduler, agent, shadow runs, webhook.

Contents: starting, restarting and closing parts (`Shell`), the pages that each process serves, and
the composition of each process. Not here: what the parts do (`cluster/`, `node/`), and options and
exit codes (`cli/`). Parts do not depend on the shell: they have a `run`, or a `start` and a
`close`.
"""
