"""Policies, by family. A policy answers queries with arrays; it keeps no record of GPU shares.

This package has the scores of nodes and devices, and `catalog`, the list of all built-in policies.
Which GPUs fit is decided in `core/framework/`, shares are recorded in `core/ledger/`, and
`core/engine/` determines when decisions are made."""
