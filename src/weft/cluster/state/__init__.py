"""Turns what the Kubernetes API shows into the events of the engine.

It reads nodes, pods, volumes and constraints, and computes what bound pods hold. It does not pass
the events on to the engine (`cluster/control/` does), and does not write to the API.
"""
