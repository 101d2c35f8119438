"""Runs the engine on a live cluster: what the API shows becomes events, commands become writes.

In: the cluster's state as events (`state/`), the loop around the engine (`control/`), evictions,
ConfigMap stores, the telemetry loop, adoption of living clusters, the hosts `scheduler/` and
`extender/`, their HTTP servers and configuration.
Out: the API client (`kube/`), and every decision (`core/`).
"""
