#!/usr/bin/env bash
# The checks on a GPU box, in steps of at most 8 minutes:
# tools/gpu.sh [build] [test] [slow] [memcheck] [racecheck] [bench] [ranks]
#
# build      library and module for the GPUs of this machine (TORCHREDUCE_LIBRARY=...: only the module)
# test       the tests that use a GPU; a missing GPU is a failure. The others are what `make test` runs anywhere
# slow       those that take half a minute and more each
# memcheck   compute-sanitizer's memcheck over the tests marked `sanitize`
# racecheck  the same by its racecheck
# bench      every reduction, every scan and the short calls beside their peers, as docs/performance.md has them; the rows also in the
#            logs' folder, as results.tar.gz
# ranks      torchreduce.distributed under NCCL, on two GPUs or more: its tests; examples/elastic.py with a GPT of 124
#            million parameters, on 1, 2, 4 GPUs; benchmarks/distributed.py
#
# Logs go to $OUT, or to build/gpu. Ends with one line a step; fails if a step failed.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=${OUT:-build/gpu}
mkdir -p "$logs"
python=$(python3 tools/environment.py test) || exit 1
export TORCHREDUCE_GPU=1
summary=()
failed=0

step() { # name seconds command...
  local name=$1 limit=$2 start=$SECONDS status
  shift 2
  timeout "$limit" "$@" 2>&1 | tee "$logs/$name.log"
  status=${PIPESTATUS[0]}
  local verdict=ok
  if [ "$status" -eq 124 ]; then verdict="FAILED: over $limit s"; elif [ "$status" -ne 0 ]; then verdict="FAILED"; fi
  [ "$status" -eq 0 ] || failed=1
  summary+=("$name: $verdict, $((SECONDS - start)) s: $(tail -n 1 "$logs/$name.log")")
}

# Some machines hand out GPUs that the sanitizer cannot attach to; that is a fact about the machine, and said as such.
sanitizer_works() {
  compute-sanitizer "$python" -c "import torch; torch.ones(1, device='cuda')" > "$logs/probe.log" 2>&1
}

# Parts of the tests side by side, since one after the other they take longer than a step may.
parts() { # tool
  local tool=$1 status=0 jobs=() job
  part() { # name expression
    compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 7 \
      "$python" -m pytest -q -p no:cacheprovider -m sanitize tests -k "cuda and ($2)" > "$logs/$tool.$1.log" 2>&1
  }
  part sums "cumsum" &
  jobs+=($!)
  part linear "not cumsum and (linear or decayed)" &
  jobs+=($!)
  part products "not cumsum and not linear and not decayed and (cumprod or logcumsumexp)" &
  jobs+=($!)
  part others "not cumsum and not linear and not decayed and not cumprod and not logcumsumexp" &
  jobs+=($!)
  for job in "${jobs[@]}"; do wait "$job" || status=$?; done
  tail -n 3 "$logs/$tool."{sums,linear,products,others}.log
  return $status
}
bench() {
  local status=0 gpu part
  "$python" -m benchmarks.run cuda --quick --patience 0.6 --out "$logs/rows" \
    --part reduce-rows reduce-columns reduce-ops scan-1d scan-rows scan-columns scan-few scan-ops linear small ||
    status=$?
  gpu=$("$python" -c "import torch; from benchmarks import run; print(run.short_name(torch.cuda.get_device_name()))")
  for part in "$logs"/rows/*.csv; do cp "$part" "benchmarks/results/$gpu-${part##*/}"; done
  tar -czf "$logs/results.tar.gz" -C benchmarks results
  return $status
}
export -f parts bench
export python logs

for name in "$@"; do
  case $name in
    build) step build 470 "$python" setup.py build_ext --inplace ;;
    test) step test 470 env TORCHREDUCE_REQUIRE_GPU=1 "$python" -m pytest -n "$(nproc)" --dist loadgroup -k "cuda or gpu" ;;
    slow) step slow 470 env TORCHREDUCE_REQUIRE_GPU=1 "$python" -m pytest -n "$(nproc)" --dist loadgroup --slow -m slow ;;
    ranks)
      step ranks-tests 300 env TORCHREDUCE_REQUIRE_GPU=1 "$python" -m pytest -q tests/test_distributed.py -k cuda
      step ranks-tests-buffers 300 env TORCHREDUCE_REQUIRE_GPU=1 TORCHREDUCE_SYMMETRIC_MEMORY=1 \
        "$python" -m pytest -q tests/test_distributed.py -k cuda
      step ranks-bench 180 "$python" -m benchmarks.distributed --out "$logs"
      step ranks-elastic 400 env PYTHONPATH=. "$python" examples/elastic.py --gpt2 --steps 50 --count 4 --size 1 --products
      ;;
    memcheck | racecheck)
      if sanitizer_works; then
        # Without torch's caching allocator every tensor is an allocation of its own, with bounds that the tool knows.
        step "$name" 470 env TORCHREDUCE_REQUIRE_GPU=1 PYTORCH_NO_CUDA_MEMORY_CACHING=1 bash -c "parts $name"
      else
        summary+=("$name: NOT RUN, compute-sanitizer does not work on this machine: $(tail -n 1 "$logs/probe.log")")
      fi
      ;;
    bench) step bench 470 bash -c bench ;;
    *)
      echo "tools/gpu.sh: unknown step '$name'. Supported are build, test, slow, memcheck, racecheck and bench" >&2
      exit 2
      ;;
  esac
done

echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
"$python" -m torchreduce info
printf '%s\n' "${summary[@]}"
exit $failed
