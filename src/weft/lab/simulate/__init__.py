"""Runs the engine on a virtual clock: traces, generated workloads, experiments' arrival rules.

The package reads and generates clusters and workloads, passes events to the engine, and measures
runs. The engine is the one that runs in a cluster; figures are drawn in `lab/experiment/`."""
