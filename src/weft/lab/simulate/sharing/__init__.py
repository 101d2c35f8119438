"""Simulates jobs that share GPUs: memory over time, slowdown, out of memory, and exporters'
samples.

In: the true state of jobs and GPUs on a virtual clock, the metric pipeline that shows it to
policies late and with noise, and the run that connects both with the engine.
Out: deciding (the engine, with the policies that run in a cluster), and series of runs
(`lab/experiment/`)."""
