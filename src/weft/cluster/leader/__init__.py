"""Connects the parts that run only in the leader and do not decide.

In: this package has the list of parts, the events that each receives, and some small parts. Out:
other packages evict (`cluster/eviction/`) and store (`cluster/stores/`); the cluster itself imports
no part."""
