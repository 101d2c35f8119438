"""Says what a series means: which metric, in which unit, of which GPU and pod, and whether it can
be true.

In: metric names of all exporters, the join with the cluster's GPUs, doubts, completeness, progress.
Out: where answers come from (`telemetry/sources/`), what is made of them (`telemetry/feed/`).
"""
