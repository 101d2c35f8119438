"""The command line: each command connects parts of the other packages.

The package holds options, files, tables and exit codes, and no logic that programs other than the
command line need."""
