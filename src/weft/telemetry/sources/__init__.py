"""Queries metrics: from Prometheus or a compatible server, or from the exporters themselves.

Here are both kinds of sources and the transports to a server. The meaning of a series is determined
in `telemetry/meaning/`, and when to query in `cluster/telemetry/`."""
