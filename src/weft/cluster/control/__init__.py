"""Drives the engine on a live cluster: takes events in, carries commands out.

In: the live cluster itself, its watches, leadership, timer, bindings, and reports to people. Out:
what an object means (`cluster/state/`), evictions (`cluster/eviction/`).
"""
