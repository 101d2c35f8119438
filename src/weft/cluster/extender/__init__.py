"""Weft as an extender of the stock kube-scheduler: filter, prioritize, bind, preempt, inspect,
status.

Contents: the extender protocol (bytes to values and back), the routes with their policies, the HTTP
server with its limits and TLS, and kube-scheduler's configuration. Not here: decisions
(`core/engine/`: filter and prioritize are questions that change nothing, a bind is an event),
talking to the API server (`cluster/`), and parsing command lines (`cli/`)."""
