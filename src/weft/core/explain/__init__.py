"""Explains decisions: why a pod is pending, what would have to change, what metrics contributed.

In: reasons with counts, the smallest change that helps, the decision without metrics; the one
`Explanation` of live clusters and decisions files, its renderer, and the sentences of events,
conditions and the extender. Out: making decisions (`core/engine/`), printing them (`cli/`).
"""
