"""Explains decisions: why a pod is pending, which change would help, and which metrics contributed.

Contents: the `Explanation` that live clusters and decisions files share, its renderer, and the
sentences of events, conditions and the extender. Not here: making decisions (`core/engine/`),
printing (`cli/`)."""
