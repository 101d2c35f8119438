"""Runs the engine on a live cluster: API objects become events, commands become API writes.

Contents: the cluster's state as events (`state/`), the loop around the engine (`control/`),
evictions, ConfigMap stores, the telemetry loop, adoption of clusters with other GPU schedulers, and
`scheduler/` and `extender/` with their HTTP servers and configuration. Not here: the API client
(`kube/`), and every decision (`core/`).
"""
