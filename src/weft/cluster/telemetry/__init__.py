"""Polls the GPUs' metrics and passes the engine a new snapshot each time.

In: the loop, discovery of exporters, observed slowdowns, OOM events, reloaded predictions. Out: the
meaning of metrics (`telemetry/`)."""
