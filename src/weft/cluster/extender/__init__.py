"""Weft as an extender of the stock kube-scheduler: filter, prioritize, bind, preempt, inspect,
status.

The package contains the extender protocol (bytes to values and back), the routes with their
policies, the HTTP server with its limits and TLS, and kube-scheduler's configuration. The engine
decides (`core/engine/`): filter and prioritize only ask it and change nothing, a bind is an event.
Access to the API server is in `cluster/`, command lines are in `cli/`."""
