# Weft. Each target works from a fresh clone: it makes .venv when needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
UV_VERSION := 0.13.8
BIN := .venv/bin
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/.venv
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/weft/__init__.py)
TAG ?= weft-gpu
IMAGE_TAG := $(if $(findstring :,$(notdir $(TAG))),$(TAG),$(TAG):$(VERSION))
BASE ?= docker.io/library/python:3.11-slim-bookworm
export OMP_NUM_THREADS := 1
# What runs without a cluster, a node or a browser; tests of those are not even read: 110 files.
# A test that hangs shows where, and fails.
TESTS := -n 3 --dist worksteal -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true -m "not data_full and not faults" $(addprefix --ignore tests/,architecture browser cluster node)
# pytest rewrites the tests: 15 s at each run where the result may not be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo kind-demo images test test-long test-faults test-data test-cluster test-node test-gpu test-browser cluster-tools node-tools helm manifests image release site api gpu-check coverage check words format bench bench-cluster experiments docs clean

help:  ## This list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

venv: .venv/.made  ## .venv with the locked dependencies.

.venv/.made: pyproject.toml uv.lock
	@test -n "$(PYTHON)" || { echo "no Python found: install Python 3.11, or say make PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Making .venv and fetching what Weft needs into it: a minute or two, once." >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv==$(UV_VERSION)
	@$(BIN)/uv sync --quiet --frozen --inexact --compile-bytecode
	@$(BIN)/python -m compileall -q src
	@touch $@

demo: venv  ## Generate a cluster, compare seven policies on it, write a report.
	@mkdir -p build/demo
	@echo "Making a cluster of 800 GPUs and a workload for it, in build/demo." >&2
	@$(BIN)/weft generate nodes build/demo/nodes.csv --gpus 800
	@$(BIN)/weft generate pods build/demo/pods.csv --gpus 800
	@echo "Simulating seven policies on ten arrival orders each, a report of them at the end." >&2
	@$(BIN)/weft simulate --nodes build/demo/nodes.csv --pods build/demo/pods.csv --seeds 10 \
	  --policy random --policy dot-product --policy gpu-clustering --policy gpu-packing \
	  --policy best-fit --policy fgd --policy least-stranding --report build/demo/report
	@$(BIN)/weft simulate --nodes build/demo/nodes.csv --pods build/demo/pods.csv --policy fgd \
	  --decisions build/demo/fgd.jsonl --no-timing > /dev/null
	@echo "See why a pod is pending: $(BIN)/weft explain pod 1313 --decisions build/demo/fgd.jsonl" >&2
	@echo "See a cluster live: $(BIN)/weft console --demo" >&2

# The five commands of README.md, each shown as it runs; a test compares them.
kind-demo:  ## Weft on a kind cluster whose GPUs are played, with a first pod (needs docker, kind, helm and kubectl).
	@for tool in docker kind helm kubectl; do \
	  command -v $$tool > /dev/null || { echo "make kind-demo: no $$tool: install it (docker, kind, helm 3.14 or later, and kubectl are needed)" >&2; exit 1; }; \
	done
	@docker info > /dev/null 2>&1 || { echo "make kind-demo: docker's daemon does not answer (docker info): start it" >&2; exit 1; }
	kind create cluster --name weft
	BUILDX_NO_DEFAULT_ATTESTATIONS=1 docker build --tag weft-gpu:$(VERSION) .
	kind load docker-image weft-gpu:$(VERSION) --name weft
	helm install weft deploy/chart --namespace weft-system --create-namespace --set image.repository=weft-gpu --values examples/played-gpus.yaml
	kubectl apply -f examples/weft/pods.yaml
	@kubectl wait --for=condition=Ready pod/share --timeout=300s && kubectl logs share
	@echo "To remove it: kind delete cluster --name weft" >&2

images: venv demo  ## docs/images, of what make demo draws.
	@cp build/demo/report/allocation.svg docs/images/allocation.svg

test: venv  ## The tests, in under three minutes.
	@$(BIN)/pytest $(TESTS)

test-long: venv  ## The same tests with the full numbers of examples and seeds, in six minutes.
	@WEFT_TEST_LONG=1 $(BIN)/pytest $(TESTS)

test-faults: venv  ## Thousands of schedules of crashes and faults, and mutants they must catch.
	@$(BIN)/pytest -s -m "faults"

test-data: venv  ## Every seed of the published experiment (needs WEFT_DATA).
	@$(BIN)/pytest -n 2 -m "data_full"

cluster-tools: venv  ## etcd, kube-apiserver and kube-scheduler for test-cluster, built once.
	@$(BIN)/python tests/cluster/binaries.py
	@WEFT_KUBERNETES_VERSION=1.37.1 $(BIN)/python tests/cluster/binaries.py

test-cluster: venv cluster-tools helm  ## The tests on a real control plane (needs Go, or KUBEBUILDER_ASSETS).
	@$(BIN)/pytest tests/cluster

node-tools: venv cluster-tools  ## The rest of a cluster, containerd, its shim and ctr for test-node, built once.
	@$(BIN)/python tests/node/node_tools.py

helm: venv  ## helm for the chart's manifests and tests, built once.
	@$(BIN)/python tests/cluster/helm.py

manifests: venv helm  ## deploy/*.yaml and examples/originals of the chart, and the chart's generated files.
	@$(BIN)/python tests/architecture/rendered_manifests.py

image: venv  ## The image TAG (without a tag of its own: Weft's version) of the Dockerfile, with docker, podman or buildah of BASE; where none can have it, build/image.tar of Debian's packages.
	@for tool in docker podman buildah; do \
	  command -v $$tool > /dev/null || continue; \
	  $$tool inspect --type image $(BASE) > /dev/null 2>&1 || $$tool pull --quiet $(BASE) > /dev/null 2>&1 || continue; \
	  exec $$tool build --tag $(IMAGE_TAG) --build-arg BASE=$(BASE) .; \
	done; \
	echo "Neither docker, podman nor buildah has the base image $(BASE): making build/image.tar of Debian's packages." >&2; \
	mkdir -p build && $(BIN)/python deploy/image/make_image.py build/image.tar --tag $(IMAGE_TAG)

release: venv  ## Wheel, sdist, chart, image archive, SBOM and SHA-256 sums in dist/: the same bytes for the same commit.
	@rm -rf dist
	@$(BIN)/python deploy/make_release.py dist --base $(BASE)

test-node: venv node-tools helm  ## The tests on a real kubelet and containerd (as root; needs Go and Debian packages).
	@$(BIN)/pytest tests/node --ignore tests/node/test_device_plugins.py --ignore tests/node/whole --ignore tests/node/gpu
	@$(BIN)/pytest tests/node/test_device_plugins.py  # a node of its own: a kubelet does not forget their resources
	@$(BIN)/pytest -s tests/node/whole  # Weft as it is deployed, on a whole cluster

test-gpu: venv  ## Shares of this machine's NVIDIA GPU, on a real kubelet and containerd (as root; after `make node-tools`; no part of .ci/run).
	@$(BIN)/pytest tests/node/gpu

test-browser: venv  ## The report and the console in Chromium (needs the Debian packages chromium, fonts-liberation and nginx).
	@$(BIN)/pytest tests/browser
	@WEFT_TEST_LONG=1 $(BIN)/pytest tests/property/test_console_picture.py -k "random_states_picture or many_random_deltas"  # in full

gpu-check:  ## What the agent relies on, and workloads, on the GPU at hand, in ten minutes; fails where there is none.
	@$(PYTHON) benchmarks/gpu_check.py

coverage: venv  ## Line coverage of the core, which must be at least 95 %.
	@$(BIN)/pytest -n 2 -m "not data_full and not faults" --cov --cov-report=term-missing:skip-covered --cov-fail-under=95

check: venv  ## Format, lint, types, import rules, docs.
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/pytest -q tests/architecture

words: venv  ## 200 docstrings and 100 messages drawn by SEED, to be read by somebody new to the code.
	@$(BIN)/python tests/architecture/draw_words.py --seed $(or $(SEED),1)

format: venv  ## Format the code.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: venv  ## Benchmarks; results in build/bench/<name>.json.
	@mkdir -p build/bench
	@for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

bench-cluster: venv cluster-tools  ## Weft beside kube-scheduler on a real control plane, a quarter of an hour.
	@$(BIN)/python benchmarks/cluster

experiments: venv  ## Published experiments in their short forms; build/experiments/index.html (needs WEFT_DATA).
	@$(BIN)/weft experiment reproduce $(dir $(wildcard experiments/*/expected.yaml)) --short --out build/experiments \
	  || { code=$$?; test $$code = 3; }  # 3: data is absent, and said to be

docs: venv  ## Check that every page's links, code and names are true.
	@$(BIN)/pytest -q tests/architecture/test_docs.py

api: venv  ## docs/reference/python-api.md, of docstrings.
	@$(BIN)/python tests/architecture/public_api.py

site: venv  ## The documentation as a searchable site, build/site/index.html; a broken link is an error.
	@$(BIN)/python docs/site/make_site.py

clean:  ## Remove what the targets made.
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
