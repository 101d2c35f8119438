"""Simulates jobs that share GPUs: memory over time, slowdown, out of memory, and exporters'
samples.

Contents: the true state of jobs and GPUs on a virtual clock, the metric pipeline that shows this
state to policies late and with noise, and the run that connects both with the engine. Not here:
decisions (the engine makes them, with the policies that run in a cluster), and series of runs
(`lab/experiment/`)."""
