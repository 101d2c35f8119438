"""What runs say: means, paired differences with intervals, who wins where, what was expected.

In: the measures of cells. Out: summaries, differences and findings in words.
"""
