#!/bin/sh
# The experiments of Ferikoglou et al.: see experiments/ferikoglou/README.md.
cd "$(dirname "$0")" || exit 1
PATH="$PWD/.venv/bin:$PATH"
exec weft experiment run experiments/ferikoglou "$@"
