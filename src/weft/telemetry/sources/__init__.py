"""Queries metrics: from Prometheus or a compatible server, or from the exporters themselves.

Contents: both kinds of sources and the transports to a server. Not here: the meaning of a series
(`telemetry/meaning/`), and when to query (`cluster/telemetry/`)."""
