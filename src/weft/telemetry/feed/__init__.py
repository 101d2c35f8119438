"""Turns samples into the snapshot that policies read: windows, doubts, memory needs, peaks.

Here is everything between joined samples and a `SignalsSnapshot`. Nothing here reads a clock or a
network; samples and times are passed in, so live and simulated runs share the code. Samples are
fetched in `telemetry/sources/`, and decisions made with the snapshot in `core/`."""
