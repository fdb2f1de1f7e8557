#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What only a GPU can show of a built tree: every op case and golden on each code path of the card,
# killed and resumed runs, and the memory checkers over the op cases of tests/ops/sanitizer, an op for
# each process: small ones, which together run every kernel; with WICK_SANITIZER=all over all op cases
# (hours). Writes a summary for people to FILE. With `sanitize` only the memory checkers (minutes).
#   tools/cuda_check.sh BUILD FILE [sanitize]
set -uo pipefail
build=$(cd "$1" && pwd) file=$2 only=${3:-}
mkdir -p "$(dirname "$file")"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
failed=0

say() { echo "$*" | tee -a "$file"; }
# A name, then a command; its last line is kept, and on failure its last twenty are shown.
check() {
  local name=$1 since=$SECONDS log=$logs/$BASHPID.log
  shift
  if "$@" >"$log" 2>&1; then
    say "$name: passed ($((SECONDS - since)) s): $(tail -1 "$log")"
  else
    say "$name: FAILED ($((SECONDS - since)) s)"
    tail -20 "$log"
    failed=1
    return 1
  fi
}

: >"$file"
say "wick on $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo "an unknown GPU"), $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
"$build/wick" devices | sed -n '/^cuda/,/^[a-z]/p' | sed '$d' | tee -a "$file"
archs=$("$build/wick" devices --json | grep '"name":"cuda"' |
  sed -n 's/.*"isas":\[\([^]]*\)\].*/\1/p' | tr -d '"' | tr ',' ' ')
[ -n "$archs" ] || { say "no GPU can be used: FAILED"; exit 1; }
if [ "$only" != sanitize ]; then
  for arch in $archs; do
    check "op cases, cuda/$arch" "$build/ops_runner" check --device "cuda/$arch"
  done
  check "goldens" "$build/golden_test" --gtest_brief=1 --gtest_filter='*cuda*'
  check "goldens of adapter kinds" "$build/kinds_test" --gtest_brief=1 --gtest_filter='*cuda*'
  check "goldens of preference losses" "$build/preference_golden_test" --gtest_brief=1 \
    --gtest_filter='*cuda*'
  check "optimizers" "$build/optimizer_test" --gtest_brief=1
  for test in api misuse fit prefix preference_run; do
    check "$test" env WICK_DEVICE=cuda "$build/${test}_test" --gtest_brief=1
  done
  check "decoding" "$build/decode_test" --gtest_brief=1
  check "random plans" "$build/random_plan_test" --gtest_brief=1
  for test in fused reverse; do
    check "steps that are made together: $test" "$build/${test}_test" --gtest_brief=1
  done
  check "50 kills in one run, and 50 while a checkpoint is written" \
    env WICK_KILLS="${WICK_KILLS:-50}" WICK_DEVICE=cuda "$build/cli_kill_test" --gtest_brief=1
fi
# TOOL: the op cases, twelve processes at a time; names the ops that were not clean or not done.
sanitize() {
  local tool=$1 since=$SECONDS bad
  bad=$(basename -s .cases "$cases"/*.cases | xargs -P 12 -I OP sh -c \
    'timeout "$4" compute-sanitizer --tool "$2" --error-exitcode 9 "$1/ops_runner" check --device cuda --op OP --cases "$5" \
       >"$3/$2.OP.log" 2>&1 || { code=$?; [ $code = 124 ] && echo "OP (not done in $4 s)" || echo "OP (exit $code)"; }' \
    sh "$build" "$tool" "$logs" "${WICK_SANITIZER_SECONDS:-300}" "$cases")
  if [ -z "$bad" ]; then
    say "compute-sanitizer $tool over the op cases: passed ($((SECONDS - since)) s)"
  else
    say "compute-sanitizer $tool over the op cases: all but" $bad "($((SECONDS - since)) s)"
    failed=1
  fi
}
cases=$(cd "$(dirname "$0")/.." && pwd)/tests/ops
[ "${WICK_SANITIZER:-}" = all ] || cases=$cases/sanitizer
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck initcheck; do sanitize "$tool"; done
else
  say "compute-sanitizer: not found, not run"
fi
exit $failed
