#!/usr/bin/env bash
# The checks on a GPU box, in steps of at most 8 minutes: tools/gpu.sh [build] [test] [memcheck] [racecheck]
#
# build      library and module for the GPUs of this machine (TORCHREDUCE_LIBRARY=...: only the module)
# test       the whole suite; a missing GPU is a failure
# memcheck   compute-sanitizer's memcheck over the tests marked `sanitize`
# racecheck  the same by its racecheck
#
# Logs go to $OUT, or to build/gpu. Ends with one line a step; fails if a step failed.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=${OUT:-build/gpu}
mkdir -p "$logs"
python=$(python3 tools/environment.py test) || exit 1
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

# Two halves of the tests side by side, since one after the other they take longer than a step may.
halves() { # tool
  local scans="cumsum or linear or decayed" status=0
  run() { # name expression
    compute-sanitizer --tool "$tool" --error-exitcode 7 "$python" -m pytest -q -p no:cacheprovider -m sanitize tests \
      -k "$2" > "$logs/$tool.$1.log" 2>&1
  }
  local tool=$1
  run scans "$scans" &
  local first=$!
  run others "not ($scans)" || status=$?
  wait $first || status=$?
  tail -n 3 "$logs/$tool.scans.log" "$logs/$tool.others.log"
  return $status
}
export -f halves
export python logs

for name in "$@"; do
  case $name in
    build) step build 470 "$python" setup.py build_ext --inplace ;;
    test) step test 470 env TORCHREDUCE_REQUIRE_GPU=1 make test ;;
    memcheck | racecheck)
      if sanitizer_works; then
        # Without torch's caching allocator every tensor is an allocation of its own, with bounds that the tool knows.
        step "$name" 470 env TORCHREDUCE_REQUIRE_GPU=1 PYTORCH_NO_CUDA_MEMORY_CACHING=1 bash -c "halves $name"
      else
        summary+=("$name: NOT RUN, compute-sanitizer does not work on this machine: $(tail -n 1 "$logs/probe.log")")
      fi
      ;;
    *)
      echo "tools/gpu.sh: unknown step '$name'. Supported are build, test, memcheck and racecheck" >&2
      exit 2
      ;;
  esac
done

echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
"$python" -m torchreduce info
printf '%s\n' "${summary[@]}"
exit $failed
