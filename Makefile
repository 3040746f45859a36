# make demo    sets up, builds, fetches a real text-recognition model, runs it
# make test    sets up, builds, runs all tests
# make build   sets up and builds into build/release
# make conformance, make hostile, make bench  build and run the suites of SHARED (default ../shared): ONNX's own tests,
#              hostile models, other engines; ARGS="--filter attention"; see tools/suites.sh
# make bench-kernels  times the tasks of real models, each by itself; ARGS="--threads 1"
# make kernel-tasks   collects them anew from the models of MODELS
# make compare-kernels  the same beside oneDNN's primitives and ONNX Runtime's models of one node; ARGS="--only resnet50"
# make prove-passes [EVERY=1]  the conformance suite and MODELS without each graph pass in turn
# make fuzz-graphs [SECONDS=60]  compares random graphs, optimized and not
# make fuzz-nodes [SECONDS=60]   nodes that make no sense: each runs or is refused
# make format  formats all sources
# make tidy    lints all sources
PRESET ?= release
JOBS ?= $(shell nproc)
export SHARED SUITES PYTHON MODELS PEERS EVERY ARGS
SOURCES = git ls-files '*.cpp' '*.h'

.PHONY: demo test build configure format tidy clean
demo:
	@tools/setup.sh build demo
	@$(MAKE) --no-print-directory build-only TARGETS=recognize_text
	@tools/demo.sh build/$(PRESET)/examples/recognize_text

test:
	@tools/setup.sh build test
	@$(MAKE) --no-print-directory build-only
	ctest --test-dir build/$(PRESET) -j $(JOBS) --output-on-failure --progress --no-tests=error

.PHONY: conformance hostile bench
conformance hostile bench:
	@tools/setup.sh build
	@$(MAKE) --no-print-directory build-only TARGETS=lathe_cli
	@tools/suites.sh $@ build/$(PRESET)/tools/lathe

.PHONY: prove-passes
prove-passes:
	@tools/setup.sh build
	@$(MAKE) --no-print-directory build-only TARGETS=lathe_cli
	@tools/suites.sh prove build/$(PRESET)/tools/lathe

build:
	@tools/setup.sh build test
	@$(MAKE) --no-print-directory build-only

.PHONY: build-only
build-only:
	cmake --preset $(PRESET) --log-level=WARNING
	cmake --build build/$(PRESET) -j $(JOBS) $(if $(TARGETS),--target $(TARGETS))

.PHONY: bench-kernels
bench-kernels:
	@tools/setup.sh build
	@$(MAKE) --no-print-directory build-only TARGETS=lathe_cli
	build/$(PRESET)/tools/lathe bench-kernel --tasks tools/kernel_tasks.txt $(ARGS)

.PHONY: kernel-tasks
kernel-tasks:
	@tools/setup.sh build
	@$(MAKE) --no-print-directory build-only TARGETS=lathe_cli
	tools/list_tasks.py --lathe build/$(PRESET)/tools/lathe --models "$(MODELS)" >build/kernel_tasks.txt
	mv build/kernel_tasks.txt tools/kernel_tasks.txt

.PHONY: compare-kernels
compare-kernels:
	@tools/setup.sh build peers
	@$(MAKE) --no-print-directory build-only TARGETS="lathe_cli onednn_layers"
	@tools/suites.sh kernels build/$(PRESET)/tools/lathe

.PHONY: fuzz-graphs fuzz-nodes
fuzz-graphs fuzz-nodes:
	@tools/setup.sh build test
	@$(MAKE) --no-print-directory build-only TARGETS=$(subst -,_,$@)
	build/$(PRESET)/tests/$(subst -,_,$@) $(or $(SECONDS),60)

format:
	@tools/setup.sh ci
	$(SOURCES) | xargs clang-format -i

tidy:
	@tools/setup.sh ci
	tools/tidy.py build/$(PRESET) --jobs $(JOBS)

clean:
	rm -rf build
