"""Reads files that users supply into plain values, with limits on time and memory.

Contents: YAML, gzip, strict forms; writing a file completely or not at all. Not here: what the
values mean (the packages that read them).
"""
