"""A live cluster's state in one file: what Weft decides by, and no more.

In: the file's form, what is kept of each object, hashed names, the reader, which fills the same
views, ledger and engine that a live cluster fills. Out: what people see of it, and simulations.
"""
