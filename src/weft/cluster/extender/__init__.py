"""Weft as an extender of the stock kube-scheduler: filter, prioritize, bind, preempt, inspect,
status.

In: the extender protocol (bytes to values and back), the routes with their policies, the HTTP
server with its limits and TLS, kube-scheduler's configuration. Out: decisions (`core/engine/`:
filter and prioritize are pure questions to the engine, a bind is an event), the API server
(`cluster/`), and command lines (`cli/`)."""
