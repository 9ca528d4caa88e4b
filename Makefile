# Everything a developer types. Each target sets up what it needs: the python3 in use if it has it all, else a .venv.
.PHONY: build demo test lint gpu gpu-build gpu-test gpu-memcheck gpu-racecheck gpu-bench hip hip-few cuda-archs \
	cuda-archs-few all-archs hip-deps simt simt-full mutants mutants-quick simt-deps clean

WORKERS := $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))

build:
	@python=$$(python3 tools/environment.py) && $$python setup.py build_ext --inplace

demo:
	@python=$$(python3 tools/environment.py) && $$python setup.py -q build_ext --inplace && $$python -m torchreduce demo

test:
	@python=$$(python3 tools/environment.py test) && $$python setup.py -q build_ext --inplace && \
	$$python -m pytest -n $(WORKERS) --dist loadgroup

lint:
	@python=$$(python3 tools/environment.py dev) && \
	$$python -m ruff check . && $$python -m ruff format --check . && $$python -m mypy && \
	find csrc tests/simt -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort | \
	xargs $$($$python -c "import clang_format; print(clang_format.get_executable('clang-format'))") --dry-run -Werror

# On a machine with an NVIDIA GPU; each step also on its own, in at most 8 minutes.
gpu:
	@tools/gpu.sh build test memcheck racecheck
gpu-build gpu-test gpu-memcheck gpu-racecheck gpu-bench:
	@tools/gpu.sh $(@:gpu-%=%)

# The kernels for AMD, built and inspected without an AMD GPU; where `make build` made code for sm_90, that is inspected, too.
# ...-few: of some element types only, for a machine with few cores.
hip hip-few:
	@python=$$(python3 tools/environment.py) && $$python tools/archs.py amd $(if $(filter %-few,$@),few)
# The same for NVIDIA GPUs other than sm_90.
cuda-archs cuda-archs-few:
	@python=$$(python3 tools/environment.py) && $$python tools/archs.py nvidia $(if $(filter %-few,$@),few)
all-archs: hip cuda-archs
hip-deps:
	@tools/debian.sh clang-19 clang-tools-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs
	@python=$$(python3 tools/environment.py) && $$python tools/archs.py tools

# The GPU kernels on emulated warps and wavefronts, on the CPU; then with seeded bugs, which have to be found.
simt simt-full:
	@python=$$(python3 tools/environment.py) && $$python setup.py -q build_ext --inplace && \
	$(MAKE) -s -C tests/simt -j $(WORKERS) PYTHON=$$python $(if $(filter %-full,$@),full,check)
mutants mutants-quick:
	@$(MAKE) -s -C tests/simt -j $(WORKERS) build
	@python3 tests/simt/mutants.py $(if $(filter %-quick,$@),--quick)
simt-deps:
	@tools/debian.sh g++ libboost-context-dev

clean:
	rm -rf build torchreduce/*.so *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
