"""Turns samples into the snapshot that policies read: windows, doubts, memory needs, peaks.

Contents: everything between joined samples and a `SignalsSnapshot`. Nothing reads a clock or a
network: samples and times are passed in, so live and simulated runs share the code. Not here:
fetching samples (`telemetry/sources/`), and decisions made with the snapshot (`core/`)."""
