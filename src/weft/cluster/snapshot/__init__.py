"""A live cluster's state in one file: what influences Weft's decisions, and no more.

In: the file's form, cutting objects down to it, anonymising, and loading a file into the views,
ledger and engine that a live cluster has. Out: printing, and simulations."""
