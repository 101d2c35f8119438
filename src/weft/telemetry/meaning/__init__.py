"""Determines what a series means: which metric, in which unit, of which GPU and pod.

Here are metric names of all exporters, decoding answers, the join with the cluster's GPUs, units,
and progress. Answers come from `telemetry/sources/`; `telemetry/feed/` decides whether and how they
are used."""
