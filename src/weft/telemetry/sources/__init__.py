"""Asks for metrics: Prometheus and what speaks its API, or the exporters themselves.

In: the two sources, how a query gets to a server, which Services are one, decoded answers.
Out: what a series means (`telemetry/meaning/`), and when to ask (`cluster/telemetry/`).
"""
