# Two commands do everything on a fresh machine with Rust, Node and apt:
#   make run    builds the hub with its dashboard and starts it on the embedded store
#   make test   installs what the tests need, runs every check and test
# The quick loop while developing: make check

CARGO ?= cargo
NPM   ?= npm
ARGS  ?=
TARGET = $(or $(CARGO_TARGET_DIR),./target)

# What a target runs is the release build. SHORT=1 takes the dev build that the tests have made, and as little work as
# shows that the target works: the tests run every `make` of every page so (e2e/tests/make). The dev build is always that
# of the whole workspace: of one package it would choose other features, and compile half of the dependencies again.
ifeq ($(SHORT),)
BUILD   = $(CARGO) build --release -p promethean
BUILT   = $(TARGET)/release
bench   = $(CARGO) run --release -p promethean-bench --bin $(1)
example = $(CARGO) run --release -p promethean-store --features suite --example $(1)$(if $(2), -- $(2))
only    = -p $(1)
else
BUILD   = $(CARGO) build --workspace --bins --examples
BUILT   = $(TARGET)/debug
bench   = $(BUILT)/$(1)
example = $(BUILT)/examples/$(1)$(if $(2), $(2))
only    = --workspace
override SECONDS = 1
FAILOVERS = 1
CYCLES    = 0
export PROMETHEAN_BENCH_SHORT = 1
endif

.PHONY: help run build web test check style lint docs release-check unit e2e browser sbom bench bench-compare torture soak fuzz clean

help: ## Shows the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: build ## Builds the hub and starts it (ARGS="--ws-port 0" passes flags on)
	$(BUILT)/promethean serve $(ARGS)

build: web ## Builds the release binary with the dashboard inside
	$(BUILD)

web: dashboard/dist/index.html sdk/typescript/dist/sdk.js ## Builds the dashboard and the browser SDK

sdk/typescript/node_modules: sdk/typescript/package-lock.json
	cd sdk/typescript && $(NPM) ci --no-audit --no-fund --loglevel=error && touch node_modules

sdk/typescript/dist/sdk.js: sdk/typescript/node_modules $(shell find sdk/typescript/src sdk/typescript/scripts -type f 2>/dev/null)
	cd sdk/typescript && $(NPM) run --silent build && touch dist/sdk.js

dashboard/node_modules: dashboard/package-lock.json
	cd dashboard && $(NPM) ci --no-audit --no-fund --loglevel=error && touch node_modules

dashboard/dist/index.html: dashboard/node_modules sdk/typescript/dist/sdk.js $(shell find dashboard/src dashboard/index.html dashboard/demo.html -type f 2>/dev/null)
	cd dashboard && $(NPM) run --silent build && touch dist/index.html

test: web check docs release-check unit browser ## Everything CI runs

check: style ## The quick loop: format, clippy, unit tests
	$(CARGO) test --workspace --lib

style:
	scripts/prose
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	scripts/lint-deploy.sh

lint: style docs ## Format, clippy, documentation, the files in deploy/, all without warnings

release-check: web ## Licences, versions, the stated Rust version, what is in the packages, the bill of materials
	node --test scripts/release/*.test.mjs
	scripts/deny.sh

sbom: ## Writes the bill of materials, target/sbom.json (CycloneDX)
	mkdir -p target
	node scripts/release/sbom.mjs > target/sbom.json

unit: ## All Rust tests but those of `make check`, the end-to-end ones with the real binary included
	scripts/install.sh curl jq redis-server systemctl
	scripts/install-mongosh.sh & $(CARGO) build --workspace --bins --examples && wait $$!
	$(CARGO) test --quiet --manifest-path bench/compare/Cargo.toml --target-dir target/compare/build
	$(TARGET)/debug/with-mongo sh -c "$(CARGO) test --workspace --bins --test '*' && $(CARGO) test --workspace --doc"
	scripts/run-examples.sh

browser: web ## The SDK on Node and the dashboard in a real Chromium
	scripts/install-chromium.sh
	cd sdk/typescript && $(NPM) test --silent
	cd dashboard && $(NPM) test --silent
	scripts/browser-tests.sh

bench: build ## The numbers of docs/performance.md, each beside its bar
	$(call bench,bus)
	PROMETHEAN_BIN=$(BUILT)/promethean $(call bench,hub)
	PROMETHEAN_BIN=$(BUILT)/promethean $(call bench,state)
	PROMETHEAN_BIN=$(BUILT)/promethean $(call bench,outbox)
	MIMALLOC_PURGE_DELAY=4000 $(call example,bench_log)
	$(call bench,mongo)
	$(call bench,claims)

bench-compare: build ## Beside NATS JetStream and Redis Streams, one table (ARGS="growth": how cost grows)
	scripts/bench-compare.sh $(ARGS)$(if $(SHORT), --short --promethean $(BUILT)/promethean)

torture: sdk/typescript/node_modules $(if $(SHORT),build) ## Crash tests for as long as SECONDS says, with printed seeds
	$(call example,torture,--seconds $(or $(SECONDS),600))
	PROMETHEAN_FAILOVERS=$(or $(FAILOVERS),20) $(CARGO) test $(call only,promethean-store) --test mongo -- failover$(if $(SHORT),::nothing_answered) --nocapture
	$(if $(SHORT),$(BUILD),$(CARGO) build -p promethean -p promethean-testmongo --bins)
	PROMETHEAN_CLUSTER_CYCLES=$(or $(CYCLES),10) $(TARGET)/debug/with-mongo $(CARGO) test $(call only,promethean-e2e) --test cluster failover -- --nocapture
	CHAOS_SECONDS=$(or $(SECONDS),600) $(CARGO) test $(call only,promethean-e2e) --test it chaos:: -- --nocapture
	cd sdk/typescript && CHAOS_SECONDS=$(or $(SECONDS),600) PROMETHEAN_BIN=$(abspath $(TARGET))/debug/promethean npx vitest run test/chaos.test.ts

soak: web ## The dashboard under 2,000 events/s for five minutes (SECONDS says how long)
	scripts/install-chromium.sh
	SOAK_SECONDS=$(or $(SECONDS),300) scripts/browser-tests.sh

fuzz: ## Each fuzz target for 60 seconds
	$(if $(SHORT),FUZZ_PROFILE=dev )scripts/fuzz.sh $(or $(SECONDS),60)

clean: ## Removes what was built
	$(CARGO) clean
	rm -rf dashboard/dist dashboard/node_modules sdk/typescript/dist sdk/typescript/node_modules
