"""Wires to a live cluster whatever its leader does beside deciding.

In: which parts there are, what each hears of, and small parts of their own. Out: evictions
(`cluster/eviction/`), what is stored (`cluster/stores/`), and the cluster itself, which knows no
part.
"""
