"""Drives the engine on a live cluster: takes events in, carries commands out.

The package contains the live cluster itself, its watches, leadership, timer, bindings, and reports
to people. `cluster/state/` reads the objects of the API, and `cluster/eviction/` evicts pods.
"""
