"""The versioned configuration file: YAML, decoded into frozen structs, with a reason for each
setting.

Contents: the file's form, the defaults with their reasons, and validation. Not here: carrying out
what a setting says, command-line options (`cli/`), and reading the kubeconfig (`kube/`)."""
