"""Determines what a series means: which metric, in which unit, of which GPU and pod.

Contents: metric names of all exporters, decoding answers, the join with the cluster's GPUs, units,
and progress. Not here: fetching answers (`telemetry/sources/`), and whether and how they are used
(`telemetry/feed/`)."""
