"""Connects the parts that a leader has in addition to deciding.

In: which parts there are, which events each receives, and small parts of their own. Out: evictions
(`cluster/eviction/`), stores (`cluster/stores/`), and the cluster itself, which knows no part.
"""
