"""Connects the parts that run only in the leader and do not decide.

The package contains the list of parts, the events that each receives, and some small parts.
Evictions are in `cluster/eviction/`, stores in `cluster/stores/`. The cluster itself does not
import any part."""
