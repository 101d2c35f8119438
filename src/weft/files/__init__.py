"""Files that people hand in, made plain values, within bounds: nothing a file says makes reading
it endless, fills the memory, or is taken for something else than it looks like.

In: YAML, gzip, strict forms; writing a file whole or not at all. Out: what
the values mean (the packages that read them).
"""
