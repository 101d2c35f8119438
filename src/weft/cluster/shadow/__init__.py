"""A configuration read-only beside what runs: each binding seen, beside its own choice.

In: the choice in the state right before a binding, and what it would change. Out: writing anything,
deciding for anybody, what people see of it.
"""
