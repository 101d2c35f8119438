"""Polls the GPUs' metrics and passes the engine a new snapshot each time.

Contents: the loop, discovery of exporters, observed slowdowns, OOM events and reloaded predictions.
Not here: the meaning of metrics (`telemetry/`)."""
