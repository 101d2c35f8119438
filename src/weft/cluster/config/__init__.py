"""The versioned configuration file: YAML, decoded into frozen structs, with a reason for each
setting.

In: this package has the file's form, the defaults with their reasons, and validation. Out: other
packages do what a setting says, define command-line options, and read the kubeconfig (`kube/`)."""
