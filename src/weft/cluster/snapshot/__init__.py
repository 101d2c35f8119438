"""A live cluster's state in one file: only the facts that influence Weft's decisions.

In: the file's form, reducing objects to it, anonymising, and loading a file into the views, ledger
and engine of a live cluster. Out: printing, and simulations."""
