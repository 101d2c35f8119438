"""Policies, by family. A policy answers queries with arrays; it keeps no record of GPU shares.

In: scores of nodes and devices, and `catalog`, the list of all built-in policies. Out: what fits
(`core/framework/`), accounts (`core/ledger/`), when decisions are made (`core/engine/`)."""
