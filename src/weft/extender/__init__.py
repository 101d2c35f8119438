"""Weft beside the stock kube-scheduler: HTTP filter, prioritize, bind, preempt, inspect, status.

In: the extender protocol as captured (bytes to values and back), which route decides by which
policy, the HTTP server with its limits and TLS, kube-scheduler's configuration. Out: decisions
(`engine/`: filter and prioritize are its pure questions, a bind is one of its events), the API
server (`live/`), and command lines (`cli/`).
"""
