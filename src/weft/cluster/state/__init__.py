"""Turns what the Kubernetes API shows into the events of the engine.

In: nodes, pods, volumes, constraints; what a bound pod holds. Out: the loop that passes events to
the engine (`cluster/control/`), and writing to the API.
"""
