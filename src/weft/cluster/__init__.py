"""Runs the engine on a live cluster: API objects become events, commands become API writes.

The package holds the cluster's state as events (`state/`), the loop around the engine (`control/`),
evictions, ConfigMap stores, the telemetry loop, adoption of clusters with other GPU schedulers, and
`scheduler/` and `extender/` with their HTTP servers and configuration.
The API client is in `kube/`; every decision is made in `core/`.
"""
