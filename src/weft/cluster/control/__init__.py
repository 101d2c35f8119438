"""Drives the engine on a live cluster: takes events in, carries commands out.

Contents: the live cluster itself, its watches, leadership, timer, bindings, and reports to people.
Not here: interpreting objects of the API (`cluster/state/`), and evicting pods
(`cluster/eviction/`).
"""
