"""Explains decisions: why a pod is pending, which change would help, and which metrics contributed.

In: the `Explanation` that live clusters and decisions files share, its renderer, and the sentences
of events, conditions and the extender. Out: making decisions (`core/engine/`), printing
(`cli/`)."""
