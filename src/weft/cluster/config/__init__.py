"""The versioned configuration file: YAML, decoded into frozen structs, with a reason for each
setting.

In: the file's form, defaults with their reasons, and validation. Out: what a setting does (the
packages that use it), command-line options, and the kubeconfig (`kube/`)."""
