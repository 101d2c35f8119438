"""The versioned configuration file: YAML in, frozen structs out, every setting with its reason.

In: the file's form, its defaults and why they are so, what is wrong with a file. Out: what is done
with a setting (the rooms that have it), command-line options, and the kubeconfig (`kube/`).
"""
