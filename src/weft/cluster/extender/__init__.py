"""Weft as an extender of the stock kube-scheduler: filter, prioritize, bind, preempt, inspect,
status.

In: the extender protocol (bytes to values and back), which route decides by which policy, the HTTP
server with its limits and TLS, kube-scheduler's configuration. Out: decisions (`core/engine/`:
filter and prioritize are its pure questions, a bind is one of its events), the API server
(`cluster/`), and command lines (`cli/`).
"""
