# Everything a developer types. Each target sets up what it needs: the python3 in use if it has it all, else a .venv.
.PHONY: build demo ladder test test-slow test-integrations lint wheel wheel-check docs gpu gpu-build gpu-test gpu-slow \
	gpu-memcheck gpu-racecheck gpu-bench gpu-ranks hip hip-few cuda-archs cuda-archs-few all-archs hip-deps simt simt-full \
	mutants mutants-some simt-deps quick same full clean

WORKERS := $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))

build:
	@python=$$(python3 tools/environment.py) && $$python setup.py build_ext --inplace

demo:
	@python=$$(python3 tools/environment.py) && $$python setup.py -q build_ext --inplace && $$python -m torchreduce demo

# The classic kernels, from the first idea to this package's own: compiled when first needed, run, checked, measured.
ladder:
	@python=$$(python3 tools/environment.py) && $$python setup.py -q build_ext --inplace && $$python -m torchreduce ladder

# test-slow: also the tests that take half a minute and more each.
test test-slow:
	@python=$$(python3 tools/environment.py test) && $$python setup.py -q build_ext --inplace && \
	$$python -m pytest -n $(WORKERS) --dist loadgroup $(if $(filter %-slow,$@),--slow)

# torchreduce.integrations with the frameworks themselves, which it installs: about 3 GB.
test-integrations:
	@python=$$(python3 tools/environment.py test integrations) && $$python setup.py -q build_ext --inplace && \
	$$python -m pytest -rs --slow tests/test_integrations.py

lint:
	@python=$$(python3 tools/environment.py dev) && \
	$$python -m ruff check . && $$python -m ruff format --check . && $$python -m mypy && $$python tools/lengths.py && \
	find csrc tests/simt -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort | \
	xargs $$($$python -c "import clang_format; print(clang_format.get_executable('clang-format'))") --dry-run -Werror

# A wheel for each Python that is found, and the sdist, in dist/; then each installed where there is no compiler.
# With a GPU part for every NVIDIA GPU since Ampere, whatever this machine has; TORCHREDUCE_GPU=0: without.
wheel: export TORCHREDUCE_GPU ?= 1
wheel: export TORCH_CUDA_ARCH_LIST ?= 8.0;9.0+PTX
wheel:
	@python=$$(python3 tools/environment.py wheel) && $$python setup.py -q build_ext --inplace && \
	$$python tools/wheel.py build
wheel-check:
	@python=$$(python3 tools/environment.py wheel) && $$python tools/wheel.py check

# The documentation as a site, in build/site.
docs:
	@python=$$(python3 tools/environment.py docs) && $$python setup.py -q build_ext --inplace && \
	NO_MKDOCS_2_WARNING=1 $$python -m mkdocs build --strict

# On a machine with an NVIDIA GPU; each step also on its own, in at most 8 minutes.
gpu:
	@tools/gpu.sh build test slow memcheck racecheck
gpu-build gpu-test gpu-slow gpu-memcheck gpu-racecheck gpu-bench gpu-ranks:
	@tools/gpu.sh $(@:gpu-%=%)

# The kernels for AMD, built and inspected without an AMD GPU; where `make build` made code for sm_90, that is inspected, too.
# ...-few: of some element types only, for a machine with few cores.
hip hip-few:
	@python=$$(python3 tools/environment.py) && $$python tools/archs.py amd $(filter few,$(lastword $(subst -, ,$@)))
# The same for NVIDIA GPUs other than sm_90.
cuda-archs cuda-archs-few:
	@python=$$(python3 tools/environment.py) && $$python tools/archs.py nvidia $(filter few,$(lastword $(subst -, ,$@)))
all-archs: hip cuda-archs
hip-deps:
	@tools/debian.sh clang-19 clang-tools-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs
	@python=$$(python3 tools/environment.py) && $$python tools/archs.py tools

# The GPU kernels on emulated warps and wavefronts, on the CPU; then with seeded bugs, which have to be found.
# simt-full: every case. The package's GPU part is not needed.
simt simt-full: export TORCHREDUCE_GPU ?= 0
simt simt-full:
	@python=$$(python3 tools/environment.py) && $$python setup.py -q build_ext --inplace && \
	$(MAKE) -s -C tests/simt -j $(WORKERS) PYTHON=$$python $(if $(filter %-full,$@),full,check)
mutants mutants-some:
	@$(MAKE) -s -C tests/simt -j $(WORKERS) build
	@python3 tests/simt/mutants.py $(if $(filter %-some,$@),--some)
simt-deps:
	@tools/debian.sh g++ libboost-context-dev

# What .ci/run does about kernels that none of these has proved, part by part; where machine code is the same in spite of
# another text, the old proof of the new text; and the full run. They write .ci/proof.json.
quick: simt-deps hip-deps
	@python=$$(python3 tools/environment.py) && $$python tools/full.py quick
same: hip-deps
	@python=$$(python3 tools/environment.py) && $$python tools/full.py same
full: simt-deps hip-deps
	@python=$$(python3 tools/environment.py) && $$python tools/full.py run

clean:
	rm -rf build torchreduce/*.so *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
