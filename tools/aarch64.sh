#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds wick for 64-bit ARM with Debian's cross compiler and runs a part of the tests under qemu:
# the thread pool and files, the kernels of the NEON rung against ref, and the binary's own answers.
# What came out is written to tests/results/aarch64.txt.
#   tools/aarch64.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/install.sh
jobs=${1:-$(cores)}
folder=$PWD/build-aarch64 root=$PWD/build-aarch64/root
# The libraries of tools/install.sh and what their files refer to; the C and C++ libraries come
# with the compiler.
libraries=(libcli11-dev nlohmann-json3-dev libsimdjson-dev libsimdjson14 libyaml-cpp-dev
  libyaml-cpp0.7 libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2 libhwy-dev libhwy1
  libgtest-dev googletest)
targets=(wick_cli base_test cpu_test dropout_test ops_runner golden_test)
tests='^(base|cpu|dropout)_test$|^ops_check(_large)?$'
golden='Cases/Golden.*qwen2_window*'

command -v dpkg-deb >/dev/null || { say "aarch64: needs a Debian; nothing was run"; exit 77; }
install_packages g++-aarch64-linux-gnu qemu-user

# Packages of another architecture, unpacked and not installed: this system stays as it is.
unpack_libraries() {
  local apt=$folder/apt
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/packages"
  cat >"$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Dir::State "$apt";
Dir::State::status "/dev/null";
Dir::Cache "$apt/cache";
END
  export APT_CONFIG=$apt/apt.conf
  apt-get -qq update
  (cd "$apt/packages" && apt-get -qq download "${libraries[@]}")
  for package in "$apt"/packages/*.deb; do dpkg-deb -x "$package" "$root"; done
}
if [ ! -f "$root/.complete" ]; then
  say "unpacking ${libraries[*]} for arm64"
  (unpack_libraries)
  touch "$root/.complete"
fi

cmake --preset aarch64 >"$folder/configure.log" 2>&1 || { cat "$folder/configure.log" >&2; exit 1; }
cmake --build "$folder" --parallel "$jobs" --target "${targets[@]}"

emulated() { qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu" "$@"; }
log=$folder/result.txt
{
  echo "wick under qemu-aarch64, $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  aarch64-linux-gnu-g++ --version | head -1
  qemu-aarch64 --version | head -1
  echo
  emulated "$folder/wick" devices
  echo
} >"$log"
status=0
ctest --test-dir "$folder" -R "$tests" --no-tests=error --output-on-failure --timeout 3000 |
  tee "$folder/ctest.log" || status=1
sed -n '/Test *#/s/ *[0-9.]* sec.*//p' "$folder/ctest.log" | sed 's/^ *[0-9/]* //' >>"$log"
# Without the places of source files.
emulated "$folder/golden_test" --gtest_filter="$golden" --gtest_brief=1 >"$folder/golden.log" || status=1
sed "s,$PWD/,," "$folder/golden.log" >>"$log"
said=$(emulated "$folder/wick" generate --quiet --prompt "What comes after Monday?")
echo "the embedded model says: $said" >>"$log"
[ "$said" = "After Monday comes Tuesday." ] || status=1
[ $status = 0 ] && echo "passed" >>"$log" || echo "FAILED" >>"$log"
mkdir -p tests/results
cp "$log" tests/results/aarch64.txt
cat "$log"
exit $status
