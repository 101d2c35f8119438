"""Turns samples into the snapshot that policies read: windows, doubts, memory needs, peaks.

In: everything between joined samples and a `SignalsSnapshot`. Nothing here asks a clock or a
network; samples and times are passed in, so live and simulated runs share it. Out: asking for
samples (`telemetry/sources/`), and decisions made with the snapshot (`core/`).
"""
