#!/bin/bash
# All that a GPU is needed for, in one call of less than eight minutes: part A of tests/gpu/day and as much of part B as there is time for.
# Takes the programs in build/, else those that tests/gpu/pack put into .gpu/, else builds them. Prints what passed.
#   tests/gpu/run.sh [--dry-run] [--results DIR] [--fakes DIR]
set -uo pipefail
cd "$(dirname "$0")/../.."
if [[ ! -v BUILD ]]; then
  for BUILD in build .gpu; do [[ -x $BUILD/bin/piper-run && -x $BUILD/tests/conformance_test ]] && break; done
  if [[ ! -x $BUILD/bin/piper-run || ! -x $BUILD/tests/conformance_test ]]; then
    BUILD=build
    cmake -G Ninja -S . -B build -DPIPER_WHOLE=ON >/dev/null &&
      ninja -C build piperc piper-run conformance_test plan_programs_test make_models >/dev/null || exit 1
  fi
fi
export BUILD
start=$SECONDS status=0
timeout 290 tests/gpu/day A --seconds 270 "$@" || status=1
left=$((450 - (SECONDS - start)))
timeout $((left + 20)) tests/gpu/day B --seconds "$left" "$@" || status=1
exit $status
