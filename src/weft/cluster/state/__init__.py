"""Turns what the Kubernetes API shows into the events of the engine.

In: this package reads nodes, pods, volumes and constraints, and computes what bound pods hold. Out:
other packages pass the events to the engine (`cluster/control/`) and write to the API.
"""
