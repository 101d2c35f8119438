"""Policies, by family. A policy answers queries with arrays; it keeps no record of GPU shares.

Contents: the scores of nodes and devices, and `catalog`, the list of all built-in policies. Not
here: which GPUs fit (`core/framework/`), accounts of shares (`core/ledger/`), and when decisions
are made (`core/engine/`)."""
