"""The versioned configuration file: YAML, decoded into frozen structs, with a reason for each
setting.

The package contains the file's form, the defaults with their reasons, and validation. What a
setting does is in the packages that use it; the kubeconfig is read in `kube/`."""
