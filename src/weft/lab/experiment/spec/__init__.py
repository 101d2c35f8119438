"""Describes experiments: the form of their files, their cells, and the measures to compare by.

Contents: reading an experiment's file into an `ExperimentSpec`, its workload, and the cells of its
plan. Not here: running them (`lab/experiment/run/`)."""
