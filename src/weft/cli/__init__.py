"""The command line: each command is a small composition root over the other rooms.

In: options, files, tables, exit codes. Out: anything another host would need too.
"""
