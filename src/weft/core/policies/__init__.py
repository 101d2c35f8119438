"""The strategies, by family. A policy answers queries with arrays; it holds no accounts.

In: how good nodes and devices are, and `catalog`, where every built-in policy is named.
Out: what fits (`core/framework/`), who holds what (`core/ledger/`), when things are decided
(`core/engine/`).
"""
