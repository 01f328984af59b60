# Two commands do everything on a fresh machine with Rust, Node and apt:
#   make run    builds the hub with its dashboard and starts it on the embedded store
#   make test   installs what the tests need, runs every check and test
# The quick loop while developing: make check

CARGO ?= cargo
NPM   ?= npm
ARGS  ?=
# Where the release build is.
RELEASE = $(or $(CARGO_TARGET_DIR),./target)/release

.PHONY: help run build web test check lint release-check unit e2e browser sbom bench bench-compare torture soak fuzz clean

help: ## Shows the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: build ## Builds the hub and starts it (ARGS="--ws-port 0" passes flags on)
	$(RELEASE)/promethean serve $(ARGS)

build: web ## Builds the release binary with the dashboard inside
	$(CARGO) build --release -p promethean

web: dashboard/dist/index.html sdk/typescript/dist/sdk.js ## Builds the dashboard and the browser SDK

sdk/typescript/node_modules: sdk/typescript/package-lock.json
	cd sdk/typescript && $(NPM) ci --no-audit --no-fund --loglevel=error && touch node_modules

sdk/typescript/dist/sdk.js: sdk/typescript/node_modules $(shell find sdk/typescript/src sdk/typescript/scripts -type f 2>/dev/null)
	cd sdk/typescript && $(NPM) run --silent build && touch dist/sdk.js

dashboard/node_modules: dashboard/package-lock.json
	cd dashboard && $(NPM) ci --no-audit --no-fund --loglevel=error && touch node_modules

dashboard/dist/index.html: dashboard/node_modules sdk/typescript/dist/sdk.js $(shell find dashboard/src dashboard/index.html dashboard/demo.html -type f 2>/dev/null)
	cd dashboard && $(NPM) run --silent build && touch dist/index.html

test: web lint release-check unit browser ## Everything CI runs

check: ## The quick loop: format, clippy, unit tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --workspace --lib

lint: ## Format, clippy, documentation, the files in deploy/, all without warnings
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	scripts/lint-deploy.sh

release-check: web ## Licences, versions, the stated Rust version, what is in the packages, the bill of materials
	node --test scripts/release/*.test.mjs
	scripts/deny.sh

sbom: ## Writes the bill of materials, target/sbom.json (CycloneDX)
	mkdir -p target
	node scripts/release/sbom.mjs > target/sbom.json

unit: ## All Rust tests, the end-to-end ones with the real binary included
	scripts/install.sh curl jq redis-server systemctl
	scripts/install-mongosh.sh & $(CARGO) build --workspace --bins --examples && wait $$!
	$(or $(CARGO_TARGET_DIR),target)/debug/with-mongo $(CARGO) test --workspace
	$(CARGO) test --quiet --manifest-path bench/compare/Cargo.toml --target-dir target/compare/build
	scripts/run-examples.sh

browser: web ## The SDK on Node and the dashboard in a real Chromium
	scripts/install-chromium.sh
	cd sdk/typescript && $(NPM) test --silent
	cd dashboard && $(NPM) test --silent
	scripts/browser-tests.sh

bench: build ## The numbers of docs/performance.md, each beside its bar
	$(CARGO) run --release -p promethean-bench --bin bus
	PROMETHEAN_BIN=$(RELEASE)/promethean $(CARGO) run --release -p promethean-bench --bin hub
	PROMETHEAN_BIN=$(RELEASE)/promethean $(CARGO) run --release -p promethean-bench --bin state
	PROMETHEAN_BIN=$(RELEASE)/promethean $(CARGO) run --release -p promethean-bench --bin outbox
	MIMALLOC_PURGE_DELAY=4000 $(CARGO) run --release -p promethean-store --features suite --example bench_log
	$(CARGO) run --release -p promethean-bench --bin mongo
	$(CARGO) run --release -p promethean-bench --bin claims

bench-compare: build ## Beside NATS JetStream and Redis Streams, one table (ARGS="growth": how cost grows)
	scripts/bench-compare.sh $(ARGS)

torture: ## Crash tests for as long as SECONDS says, with printed seeds
	$(CARGO) run --release -p promethean-store --features suite --example torture -- --seconds $(or $(SECONDS),600)
	PROMETHEAN_FAILOVERS=$(or $(FAILOVERS),20) $(CARGO) test -p promethean-store --test mongo -- failover --nocapture
	$(CARGO) build -p promethean -p promethean-testmongo --bins
	PROMETHEAN_CLUSTER_CYCLES=$(or $(CYCLES),10) $(or $(CARGO_TARGET_DIR),target)/debug/with-mongo $(CARGO) test -p promethean-e2e --test cluster failover -- --nocapture

soak: web ## The dashboard under 2,000 events/s for five minutes (SECONDS says how long)
	scripts/install-chromium.sh
	SOAK_SECONDS=$(or $(SECONDS),300) scripts/browser-tests.sh

fuzz: ## Each fuzz target for 60 seconds
	scripts/fuzz.sh $(or $(SECONDS),60)

clean: ## Removes what was built
	$(CARGO) clean
	rm -rf dashboard/dist dashboard/node_modules sdk/typescript/dist sdk/typescript/node_modules
