"""Says what a series means: which metric, in which unit, of which GPU and pod.

In: metric names of all exporters, the join with the cluster's GPUs, units, progress. Out: where
answers come from (`telemetry/sources/`), and whether and how they are used (`telemetry/feed/`).
"""
