"""Runs the engine on a virtual clock: traces, generated workloads, experiments' arrival rules.

In: reading and generating clusters and workloads, driving the engine, measuring a run. Out:
deciding (the engine is the one that runs in a cluster), and drawing figures (`lab/experiment/`)."""
