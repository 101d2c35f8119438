"""Describes experiments: the form of their files, their cells, and the measures to compare by.

In: an experiment's file. Out: `ExperimentSpec`, its workload, and the cells of its plan."""
