"""The policies, by family. A policy answers queries with arrays; it keeps no record of shares.

In: how good nodes and devices are, and `catalog`, where every built-in policy is named. Out: what
fits (`core/framework/`), who holds what (`core/ledger/`), when decisions are made (`core/engine/`).
"""
