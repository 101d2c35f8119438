"""Runs the engine on a virtual clock: traces, generated workloads, experiments' arrival rules.

In: reading and generating clusters and workloads, driving the engine, measuring a run. Out:
deciding (that is the engine, the same as runs live), and drawing figures (`lab/experiment/`)."""
