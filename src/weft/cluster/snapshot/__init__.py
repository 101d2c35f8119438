"""A live cluster's state in one file: only the facts that influence Weft's decisions.

Contents: the file's form, reducing objects to it, anonymising, and loading a file into the views,
ledger and engine of a live cluster. Not here: printing, and simulations."""
