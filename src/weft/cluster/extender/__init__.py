"""Weft as an extender of the stock kube-scheduler: filter, prioritize, bind, preempt, inspect,
status.

In: this package has the extender protocol (bytes to values and back), the routes with their
policies, the HTTP server with its limits and TLS, and kube-scheduler's configuration. Out: other
packages decide (`core/engine/`: filter and prioritize are questions that change nothing, a bind is
an event), talk to the API server (`cluster/`), and parse command lines (`cli/`)."""
