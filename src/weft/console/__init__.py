"""The console: what people see of a cluster or a simulation in a browser.

In: one picture of what is shown, its deltas, the server that sends both, and the browser's part
(`static/`). Out: deciding anything (`core/engine/`), reading clusters and files (`cluster/`),
simulating (`lab/`), printing (`cli/`).
"""
