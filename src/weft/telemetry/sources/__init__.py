"""Queries metrics: from Prometheus or a compatible server, or from the exporters themselves.

In: the two sources, the transports to a server, and decoding answers. Out: what a series means
(`telemetry/meaning/`), and when to query (`cluster/telemetry/`).
"""
