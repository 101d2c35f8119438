"""Says why: why a pod is pending, what would have to change, and what metrics had to do with it.

In: reasons with counts, the smallest change that helps, the decision without metrics, and the form
in which all of it is told. Out: making decisions (`core/engine/`), printing them (`cli/`).
"""
