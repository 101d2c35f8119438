"""The console: what people see of a cluster or a simulation in a browser.

Contents: one picture of what is shown, its deltas, the server that sends both, and the browser's
part (`static/`). Not here: deciding anything (`core/engine/`), reading clusters and files
(`cluster/`), simulating (`lab/`), printing (`cli/`).
"""
