"""Runs the engine on a virtual clock: traces, generated workloads, experiments' arrival rules.

Contents: reading and generating clusters and workloads, passing events to the engine, and measuring
runs. Not here: the engine, which is the one that runs in a cluster (`core/engine/`), and figures
(`lab/experiment/`)."""
