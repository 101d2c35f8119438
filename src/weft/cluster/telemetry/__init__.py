"""Polls the GPUs' metrics and passes the engine a new snapshot each time.

The package contains the loop, discovery of exporters, observed slowdowns, OOM events and reloaded
predictions. What metrics mean is in the package `weft.telemetry`."""
