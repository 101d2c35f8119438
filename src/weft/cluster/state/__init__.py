"""Turns what the Kubernetes API shows into the events of the engine.

Contents: reading nodes, pods, volumes and constraints, and computing what bound pods hold. Not
here: passing the events to the engine (`cluster/control/`), and writing to the API.
"""
