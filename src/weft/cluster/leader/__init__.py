"""Connects the parts that run only in the leader and do not decide.

Contents: the list of parts, the events that each receives, and some small parts. Not here:
evictions (`cluster/eviction/`) and stores (`cluster/stores/`). The cluster itself imports no part.
"""
