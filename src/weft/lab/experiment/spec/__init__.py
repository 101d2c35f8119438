"""Describes experiments: the form of its file, its cells, and the measures it may compare by.

In: an experiment's file. Out: `ExperimentSpec`, its workload, and the cells of its plan.
"""
