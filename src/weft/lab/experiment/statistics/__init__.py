"""Computes results from runs: means, paired differences, who wins where, and checks of
expectations.

Contents: summaries of the cells' measures, differences, and findings in words. Not here: pages and
figures (`lab/experiment/pages/`)."""
