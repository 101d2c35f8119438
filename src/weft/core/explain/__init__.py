"""Says why: why a pod is pending, what would have to change, and what metrics had to do with it.

In: reasons with counts, the smallest change that helps, the decision without metrics; the one
`Explanation` of live clusters and decisions files, its renderer, and the sentences of events,
conditions and the extender. Out: making decisions (`core/engine/`), printing them (`cli/`).
"""
