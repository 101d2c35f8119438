"""Simulates jobs that share GPUs: memory over time, slowdown, out of memory, and exporters'
samples.

The package holds the true state of jobs and GPUs on a virtual clock, the metric pipeline that shows
this state to policies late and with noise, and the run that connects both with the engine.
It does not decide (the engine does, with the policies that run in a cluster), and knows no series
of runs (`lab/experiment/`)."""
