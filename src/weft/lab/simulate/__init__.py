"""The engine on a virtual clock: traces, generated workloads, experiments' arrival rules.

In: reading and making clusters and workloads, driving the engine, what a run measured.
Out: deciding anything (that is the engine, the very one that runs live) and drawing figures
(`lab/experiment/`).
"""
