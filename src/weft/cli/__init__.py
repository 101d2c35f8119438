"""The command line: each command connects parts of the other packages.

In: options, files, tables, exit codes.
Out: logic that other programs than the command line need."""
