"""The command line: each command connects parts of the other packages.

In: options, files, tables, exit codes. Out: work that another process would need too."""
