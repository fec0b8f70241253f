# `make` alone lists the commands.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

CARGO ?= cargo
# What everything is tested and linted with; the library is also linted without any.
FEATURES := cli,testing
# Arguments for the demo, as in: make demo ARGS="--orders 20000 --kill 10"
ARGS ?=
# Tests mostly wait for servers, so there may be more of them at a time than cores, but not many more: each that
# starts a PostgreSQL of its own is busy for a second.
export RUST_TEST_THREADS ?= 4

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install PostgreSQL and nats-server if they are missing (Debian, Ubuntu)
	@scripts/setup.sh

.PHONY: demo
demo: setup ## Run the example pair on private servers, with duplicates and crashes; ARGS="--orders 20000"
	$(CARGO) run --locked --release --features cli -- demo $(ARGS)

.PHONY: test
test: setup ## Run the whole test suite against private servers
	$(CARGO) test --locked --no-fail-fast --features $(FEATURES)

.PHONY: memory
memory: setup ## Measure how much memory `twinbox run` takes for a backlog of a million rows; some minutes
	TWINBOX_TEST_BACKLOG=1000000 $(CARGO) test --locked --release --features $(FEATURES) --test cli -- memory --nocapture

.PHONY: bench
bench: setup ## Measure the pair against the limit and against what is written by hand; 40 minutes, see BENCHMARKS.md
	$(CARGO) bench --locked --features $(FEATURES) --bench pair -- $(ARGS)

.PHONY: bench-quick
bench-quick: setup ## The same with small sizes, for a first look; 3 minutes
	$(CARGO) bench --locked --features $(FEATURES) --bench pair -- --quick $(ARGS)

.PHONY: lint
lint: ## Check formatting, clippy, documentation, dependencies and the tree
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --lib -- -D warnings
	$(CARGO) clippy --locked --all-targets --features $(FEATURES) -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --features $(FEATURES)
	scripts/check-dependencies.sh
	scripts/check-tree.sh

.PHONY: format
format: ## Format the code
	$(CARGO) fmt
