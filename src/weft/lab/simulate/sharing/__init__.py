"""Jobs that share GPUs: memory over time, slowdown, out of memory, and what exporters say of it.

In: the truth about jobs and cards on a virtual clock, the metric pipeline that shows policies a
late and noisy picture of it, and the run that puts both around the engine.
Out: deciding anything (the engine, with the very policies that run live), and many runs
(`lab/experiment/`).
"""
