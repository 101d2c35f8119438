"""Where the numbers come from: whose metric means what, in which unit, about which GPU and pod.

In: `names` (canonical metrics, the exporters' names for them, labels in all their spellings).
Out: forecasts, and anything decided with the numbers.
"""
