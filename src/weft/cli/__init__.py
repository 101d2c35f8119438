"""The command line: each command connects parts of the other packages.

Contents: options, files, tables and exit codes. Not here: logic that programs other than the
command line need."""
