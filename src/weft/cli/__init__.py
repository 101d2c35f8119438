"""The command line: each command connects parts of the other packages.

In: options, files, tables, exit codes. Out: anything that another process would need too.
"""
