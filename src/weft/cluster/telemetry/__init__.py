"""Polls the GPUs' metrics and passes the engine a new snapshot each time.

In: this package has the loop, discovery of exporters, observed slowdowns, OOM events and reloaded
predictions. Out: the package `weft.telemetry` knows the meaning of metrics."""
