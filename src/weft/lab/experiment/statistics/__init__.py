"""Computes results from runs: means, paired differences, who wins where, and checks of
expectations.

In: the measures of cells. Out: summaries, differences and findings in words."""
