# What is built here needs Go, git and make; the race detector of "make test" needs a C compiler too. Nothing else is
# downloaded than the modules of go.sum.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

FUZZTIME ?= 10m
SEEDS ?= 500
DURATION ?= 10m
FROM ?= 1

# The caches of go lie below HOME. Where there is none to write to, they go below .cache.
ifneq ($(shell mkdir -p "$$HOME" 2>/dev/null && test -w "$$HOME" && echo ok),ok)
export HOME := $(CURDIR)/.cache/home
endif

# In a checkout that git refuses to read (another owner, no history) the binary carries no revision.
ifneq ($(shell git rev-parse HEAD >/dev/null 2>&1 && echo ok),ok)
export GOFLAGS := $(GOFLAGS) -buildvcs=false
endif

# Without cgo everything but the race detector's stage shares one set of compiled packages.
export CGO_ENABLED := 0

STAGE := .ci/stage

.PHONY: help
help: ## List the targets
	@echo 'make build                 bin/btrlog, one static binary'
	@echo 'make test                  formatting, vet, lint, all tests under the race detector, $(SEEDS) simulator seeds'
	@echo 'make demo                  three nodes, a writer that dies, a second that takes over, every byte compared'
	@echo 'make fuzz FUZZTIME=10m     every fuzz target, one after another, so long each'
	@echo 'make bench-lst             the storage engine beside its peers; writes docs/BENCHMARKS.md, some minutes'
	@echo 'make torture DURATION=10m  real processes in network namespaces under seeded faults; needs Linux and root'
	@echo 'make test-s3               the S3 backend on servers that others wrote'
	@echo 'make test-cloud            the same for Google Cloud Storage (test-gcs) and Azure Blob (test-azure)'
	@echo 'make bench-manylogs        what many logs cost: memory, fairness, takeover; some minutes'
	@echo 'make bench-archive         what archiving costs and how fast the archive is read; needs versitygw (make test-s3), 20 minutes'
	@echo 'make bench-latency         append and sync beside the floor of the hardware, on tmpfs and on the disk; two minutes'
	@echo 'make bench-peers           beside etcd, NATS and BookKeeper; fetches them, writes docs/BENCHMARKS.md, 30 minutes'
	@echo 'make bench-paper           the figures of the paper on this machine; writes docs/BENCHMARKS.md and docs/figures, 20 minutes'
	@echo 'make bench-check           fails if latency is too far above the floor of the same run; two minutes, an idle machine'
	@echo 'make bench-append          appends in flight, loss, overload, memory durability, many logs; some minutes'
	@echo 'make bench-failover        a thousand takeovers, stage by stage, beside their floor'
	@echo 'make powercut              power cuts of nodes in a virtual machine, compared with what was acknowledged'
	@echo 'make clean                 remove bin and .cache'
	@echo
	@echo 'Stages of make test, each runs alone too: check-fmt check-vet check-lint check-race check-sim'
	@echo 'More seeds: make check-sim SEEDS=10000 FROM=1'

.PHONY: build
build: ## bin/btrlog, one static binary
	@mkdir -p bin
	@echo 'compiling; with empty caches it takes minutes'
	go build -C cmd/btrlog -o ../../bin/btrlog .

# The cheap stages run first. The limits, in seconds, are for a stage that hangs, not for one that is slow: on two idle
# cores and with empty caches all of it together takes less than ten minutes.
.PHONY: test
test: ## All checks
	@rm -f .cache/stages
	@$(STAGE) fmt 60 $(MAKE) check-fmt
	@$(STAGE) build 600 $(MAKE) build
	@$(STAGE) vet 600 $(MAKE) check-vet
	@$(STAGE) lint 300 $(MAKE) check-lint
	@$(STAGE) race 900 $(MAKE) check-race
	@$(STAGE) sim 480 $(MAKE) check-sim
	@$(STAGE)

.PHONY: check-fmt
check-fmt:
	@gofmt=$$(go env GOROOT)/bin/gofmt; [ -x "$$gofmt" ] || gofmt=gofmt; \
	bad=$$(find . \( -path ./.cache -o -path ./.git -o -path ./bin \) -prune -o -name '*.go' -print0 | xargs -0 "$$gofmt" -l); \
	if [ -n "$$bad" ]; then echo "not formatted, run gofmt -w on:"; echo "$$bad"; exit 1; fi

# The program is a module of its own, so that who embeds the client gets neither its flags nor its clouds.
.PHONY: check-vet
check-vet:
	@go vet ./...
	@cd cmd/btrlog && go vet ./...
	@cd compress/zstd && go vet ./...

# The lint reads the whole tree and asks go list: its result is not to be taken from the test cache.
.PHONY: check-lint
check-lint:
	@go test -count=1 -timeout 240s ./internal/lint

# vet has run already. Two packages at a time, for two cores; every package has its own time limit. The program is tested without the
# backends whose SDKs take the race detector a minute to compile: make test-cloud has them.
.PHONY: check-race
check-race:
	@CGO_ENABLED=1 go test -race -vet=off -p 2 -timeout 480s $$(go list ./... | grep -v '/internal/lint$$')
	@cd compress/zstd && CGO_ENABLED=1 go test -race -vet=off -timeout 240s ./...
	@cd cmd/btrlog && CGO_ENABLED=1 go test -race -vet=off -tags nogcs,noazure -timeout 480s ./...

.PHONY: check-sim
check-sim: build
	@go test -vet=off -timeout 240s ./internal/sim
	@bin/btrlog sim run --seeds $(SEEDS) --from $(FROM)
	@bin/btrlog sim explore
	@bin/btrlog sim mutants

.PHONY: demo
demo: build ## The story of the README on this machine
	@go build -o bin/demo ./demo
	bin/demo

# grep finds the targets, so that a new one is never forgotten. Modules of their own below this one bring their own.
.PHONY: fuzz
fuzz: ## Every fuzz target
	@found=0; \
	while IFS=: read -r file _ line; do \
		name=$$(sed -E 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/' <<<"$$line"); dir=$$(dirname "$$file"); found=$$((found+1)); \
		echo "== $$name in $$dir for $(FUZZTIME)"; \
		(cd "$$dir" && go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x -timeout 0 . </dev/null) || { echo "FAILED: $$name in $$dir; the input is below $$dir/testdata/fuzz/$$name, keep it as a test"; exit 1; }; \
	done < <({ go list -f '{{.Dir}}' ./...; for m in cmd/btrlog compress/zstd; do (cd $$m && go list -f '{{.Dir}}' ./...); done; } | while read -r d; do grep -nH '^func Fuzz[A-Za-z0-9_]*(' "$$d"/*_test.go 2>/dev/null || true; done | sed "s|^$(CURDIR)/|./|"); \
	[ "$$found" -gt 0 ] || { echo "no fuzz target found"; exit 1; }; \
	echo "$$found fuzz targets, nothing found"

# A module of its own, so that its peers are in nobody's module graph.
.PHONY: bench-lst
bench-lst: ## The storage engine beside its peers
	cd bench && go run ./cmd/lstpeers

.PHONY: bench-manylogs
bench-manylogs: build ## What many logs cost, as JSON
	cd bench && go build -o ../.cache/manylogs ./cmd/manylogs
	.cache/manylogs idle -btrlog bin/btrlog
	.cache/manylogs takeover -btrlog bin/btrlog
	.cache/manylogs neighbour -btrlog bin/btrlog

# ARCHIVE='-only cold -stores embedded' passes flags.
ARCHIVE ?=
.PHONY: bench-archive
bench-archive: build ## What archiving costs and how fast the archive is read, as a table and as JSON; fails if a row is not reached
	cd bench && go build -o ../.cache/bench-archive ./cmd/archive && ../.cache/bench-archive -btrlog ../bin/btrlog $(ARCHIVE)

.PHONY: bench-latency
bench-latency: build ## Append and sync beside the floor of the hardware; fails if the floor in Go is no floor
	cd bench && go run ./cmd/latency -btrlog ../bin/btrlog

.PHONY: bench-append
bench-append: build ## The path of an append under load, loss and overload; some minutes
	mkdir -p .cache && cd bench && go build -o ../.cache/appendpath ./cmd/appendpath
	for what in pipeline loss overload logs; do .cache/appendpath $$what -btrlog bin/btrlog; done
	.cache/appendpath overload -btrlog bin/btrlog -dir .cache
	.cache/appendpath memory -btrlog bin/btrlog -dir .cache
	.cache/appendpath memory -btrlog bin/btrlog -dir .cache -node-flags --buffered

.PHONY: bench-failover
bench-failover: ## 1,000 takeovers beside the floor of their stages
	cd bench && go run ./cmd/failover

# PEERS='-quick', PAPER='-quick -only failure' pass flags. The peers are a module of their own, because they weigh much; BookKeeper also
# needs a JDK and Maven, and the proof of the durability class strace. What is missing is said.
PEERS ?=
.PHONY: bench-peers
bench-peers: build ## The product beside its peers, each in its quickest durable set-up
	cd bench/peerlogs && go run ./cmd/peers -btrlog ../../bin/btrlog -json ../../.cache/peers.json $(PEERS)

PAPER ?=
.PHONY: bench-paper
bench-paper: build ## The paper's figures as tables, JSON, SVG and PNG
	@mkdir -p .cache
	cd bench && go build -o ../.cache/paper ./cmd/paper && ../.cache/paper -btrlog ../bin/btrlog -json ../.cache/paper.json $(PAPER)

# Ratios to the floor of the same run, never a time. It wants a machine that does nothing else, so make test has it not.
.PHONY: bench-check
bench-check: build ## Fails if append and sync are too far above the floor
	cd bench && go run ./cmd/latency -btrlog ../bin/btrlog -check

# The adapter to Prometheus' library is a module of its own.
.PHONY: check-prometheus
check-prometheus:
	@cd integrations/prometheus && go vet ./... && go test ./...

.PHONY: check-bench
check-bench:
	@cd bench && go vet ./... && go test -timeout 120s ./load ./cluster
	@cd bench/peerlogs && go vet ./...

# The torture test is a module of its own, so that its checker is in nobody's module graph. It needs root, Linux, nft and ip;
# flags of its own by ARGS, such as ARGS='--seed 7 --json'.
ARGS ?=
.PHONY: torture
torture: ## Real nodes and clients under faults
	@[ "$$(uname -s)" = Linux ] || { echo "make torture needs Linux: network namespaces, TAP devices, nft"; exit 1; }
	@[ "$$(id -u)" = 0 ] || { echo "make torture needs root: it makes network namespaces and mounts tmpfs"; exit 1; }
	@for tool in ip nft; do command -v $$tool >/dev/null || { echo "make torture needs $$tool: install iproute2 and nftables"; exit 1; }; done
	@$(MAKE) build
	@mkdir -p .cache && cd torture && go build -o ../.cache/torture-program .
	.cache/torture-program --duration $(DURATION) $(ARGS)

.PHONY: check-torture
check-torture:
	@cd torture && go vet ./... && go test -count=1 ./...

# The S3 backend is a module of its own too. What it needs from elsewhere is installed below .cache.
.PHONY: test-s3
test-s3: ## The S3 backend on servers that others wrote; the first time it builds one, some minutes
	@.ci/s3

# So are those for Google Cloud Storage and Azure Blob. The second needs Node.js.
.PHONY: test-cloud test-gcs test-azure
test-cloud: test-gcs test-azure ## The other clouds' backends on servers that others wrote; the first time it builds one, some minutes
test-gcs:
	@.ci/cloud gcs
test-azure:
	@.ci/cloud azure

# Needs qemu; what it downloads goes below .cache. A module of its own, not part of make test.
.PHONY: powercut
powercut: ## Power cuts of real nodes in a virtual machine, half an hour on two busy cores. POWERCUT='-seed 7 -fs xfs' passes flags
	@.ci/powercut $(POWERCUT)

.PHONY: check-powercut
check-powercut:
	@cd powercut && go vet ./... && go test -timeout 120s ./...

.PHONY: clean
clean: ## Remove what was built
	@chmod -R u+w .cache 2>/dev/null || true
	rm -rf bin .cache btrlog-dev
