#!/bin/bash
# All that a GPU is needed for, in one call of less than eight minutes: builds what is missing in build/, then part A of
# tests/gpu/day and as much of part B as there is time for. Prints what passed.
#   tests/gpu/run.sh [--dry-run]
set -uo pipefail
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
if [[ ! -x $build/bin/piper-run || ! -x $build/tests/conformance_test ]]; then
  cmake -G Ninja -S . -B "$build" -DPIPER_WHOLE=ON >/dev/null && ninja -C "$build" piperc piper-run conformance_test plan_programs_test >/dev/null || exit 1
fi
start=$SECONDS status=0
BUILD=$build timeout 300 tests/gpu/day A "$@" || status=1
BUILD=$build timeout $((470 - (SECONDS - start))) tests/gpu/day B "$@" || status=1
exit $status
