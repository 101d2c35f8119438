"""Reads results out of runs: means, paired differences, who wins where, and what was expected.

In: the measures of cells. Out: summaries, differences and findings in words.
"""
