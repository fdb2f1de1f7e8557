#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds wick and tests it. Installs what that needs.
#
#   ./test.sh           all tests, then sanitizers over the parts they serve and short fuzz runs
#   ./test.sh --fast    only the tests that take seconds
#   ./test.sh --peers   also against PEFT and transformers, in a virtual environment
#   ./test.sh --cuda    also what needs an NVIDIA GPU
#   ./test.sh --all     everything, with long fuzz runs, and 64-bit ARM under qemu
set -euo pipefail
cd "$(dirname "$0")"
source tools/install.sh

# What each sanitizer serves. Address and undefined behaviour: code that reads files and indexes
# memory. Threads: the pool and what runs on it. Kernels are built for fewer instruction sets there.
asan_targets=(base_test io_test tokenizer_test jinja_test sampler_test random_plan_test ops_runner)
asan_tests='^(base|io|tokenizer|jinja|sampler|random_plan)_test$|^ops_check(_large_[123])?$'
tsan_targets=(base_test backend_test cpu_test)
tsan_tests='^(base|backend|cpu)_test$'
fuzz_seconds=300

usage() { sed -n '3,9s/^# \{0,1\}//p' "$0"; }
tiers=(release asan tsan fuzz)
while [ $# -gt 0 ]; do
  case $1 in
    --fast) tiers=(fast) ;;
    --peers | --cuda) tiers+=("${1#--}") ;;
    --all) tiers=(release asan tsan long_fuzz peers cuda aarch64) ;;
    -h | --help) usage; exit 0 ;;
    *) complain "unknown argument $1"; usage >&2; exit 2 ;;
  esac
  shift
done

check() { ctest --test-dir "$1" --output-on-failure --no-tests=error -j "$(cores)" --timeout 600 "${@:2}"; }

fast() { build release && check build -L fast; }
release() { build release && check build -LE 'cuda|peers'; }
asan() { build asan "${asan_targets[@]}" && check build-asan -R "$asan_tests"; }
tsan() { build tsan "${tsan_targets[@]}" && check build-tsan -R "$tsan_tests"; }
fuzz() { build fuzz && check build-fuzz -L fuzz; }
peers() { tools/peers/run.sh; }

long_fuzz() {
  fuzz || return
  local binary name
  for binary in build-fuzz/fuzz_*; do
    [ -f "$binary" ] && [ -x "$binary" ] || continue
    name=$(basename "$binary")
    say "$name: $fuzz_seconds s"
    "$binary" -max_total_time=$fuzz_seconds -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="build-fuzz/$name-" "build-fuzz/fuzz_corpus/$name" \
      "build-fuzz/fuzz_seeds/${name#fuzz_}" 2>&1 | tail -20 || return
  done
}

absent() { say "$1"; return 77; }
cuda() {
  build release || return
  build/wick devices --json | grep '"name":"cuda"' | grep -q '"available":true' ||
    { absent "cuda: $(build/wick devices | sed -n '/^cuda/,$s/^ *why *//p'); nothing was run"; return; }
  tools/cuda_check.sh build tests/results/cuda.txt
}
aarch64() { tools/aarch64.sh; }

start=$SECONDS
install_packages "${build_packages[@]}" "${check_packages[@]}"

results=() failed=0
for tier in "${tiers[@]}"; do
  printf '\n'
  say "== $tier"
  since=$SECONDS
  # Each tier in its own shell: `set -e` means nothing inside a condition.
  status=0
  ("$tier") || status=$?
  took=$(elapsed $((SECONDS - since)))
  case $status in
    0) results+=("$tier passed ($took)") ;;
    77) results+=("$tier skipped") ;;
    *) results+=("$tier FAILED ($took)") failed=1 ;;
  esac
done

printf '\n'
summary=$(printf ', %s' "${results[@]}")
say "test.sh: ${summary:2}; $(elapsed $((SECONDS - start))) in all"
exit $failed
