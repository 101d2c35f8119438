#!/bin/sh
# The experiments of Ferikoglou et al.: see experiments/ferikoglou/README.md.
cd "$(dirname "$0")" || exit 1
make --silent venv || exit 1
exec .venv/bin/weft experiment run experiments/ferikoglou "$@"
