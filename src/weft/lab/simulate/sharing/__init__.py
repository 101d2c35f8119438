"""Simulates jobs that share GPUs: memory over time, slowdown, out of memory, and exporters'
samples.

In: the true state of jobs and GPUs on a virtual clock, the metric pipeline that gives policies a
late and noisy picture of it, and the run that connects both with the engine. Out: deciding (the
engine, with the same policies as live), and many runs (`lab/experiment/`)."""
