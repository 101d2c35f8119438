"""Connects the parts that run only in the leader, besides deciding.

In: the list of parts, the events that each receives, and some small parts. Out: evictions
(`cluster/eviction/`), stores (`cluster/stores/`), and the cluster itself, which knows no part."""
