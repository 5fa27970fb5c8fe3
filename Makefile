# pktgen: make build, demo, test, race, lint, fuzz, bench, bench-pacing

GO       ?= go
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME ?= 20000x
export CGO_ENABLED = 0

.PHONY: all build demo test race lint fuzz bench bench-pacing clean

all: build

# A static binary: CGO is off, so that nothing of the machine's libc is in it.
build:
	$(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o pktgen ./cmd/pktgen

# A test bed on this machine, and a run in it; asks for no password.
demo: build
	./pktgen lab wire -- run --size 64 --rate 100kpps --duration 3s

# Integration tests need root, and say so where they skip without it. One package
# at a time: they send and receive, and would disturb each other. None from the
# cache: it knows neither the kernel nor the programs and scripts that they run.
test:
	$(GO) test -count=1 -p 1 -timeout 40m ./...
	$(MAKE) race

# The race detector needs cgo and a C compiler, for the tests only. What
# measures raw speed leaves itself out of it.
race:
	CGO_ENABLED=1 $(GO) test -race -count=1 -p 1 -timeout 40m ./...

lint:
	@test -z "$$(gofmt -l .)" || { echo "not gofmt'ed:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	GOARCH=arm64 $(GO) vet ./...
	$(GO) -C tools build -o staticcheck honnef.co/go/tools/cmd/staticcheck
	./tools/staticcheck ./...
	@for f in scripts/*.sh scripts/bench/*.sh .ci/run; do bash -n "$$f" || exit 1; done
	@if command -v shellcheck >/dev/null; then shellcheck -x scripts/*.sh scripts/bench/*.sh .ci/run; fi

# Every fuzzer for FUZZTIME, one at a time. A count, because a time can end in
# "context deadline exceeded" without a failing input (golang.org/issue/75804).
fuzz:
	@for p in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
			echo "$$p $$f"; \
			$(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p || exit 1; \
		done; \
	done

# Nanoseconds a frame of each part, then frames a second against other senders.
bench: build
	$(GO) test -run '^$$' -bench . -benchmem ./...
	$(GO) run ./scripts/bench

# How evenly frames arrive, beside other senders.
bench-pacing: build
	./scripts/bench/pacing.sh

clean:
	rm -f pktgen tools/staticcheck
