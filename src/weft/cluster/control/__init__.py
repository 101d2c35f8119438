"""Drives the engine on a live cluster: takes events in, carries commands out.

In: this package has the live cluster itself, its watches, leadership, timer, bindings, and reports
to people. Out: other packages interpret objects of the API (`cluster/state/`), and evict pods
(`cluster/eviction/`).
"""
