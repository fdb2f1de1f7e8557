# SPDX-License-Identifier: Apache-2.0
# Functions that quickstart.sh and test.sh share: messages, packages, builds. Sourced, not run.

# A shell without a locale would make wick and Python fall back to ASCII.
if [ -z "${LC_ALL:-}${LC_CTYPE:-}${LANG:-}" ]; then export LC_ALL=C.UTF-8; fi

if [ -t 1 ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
say() { printf '%s\n' "$bold$*$plain"; }
complain() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
cores() { nproc 2>/dev/null || sysctl -n hw.ncpu; }

build_packages=(cmake ninja-build g++ pkg-config python3 libcli11-dev nlohmann-json3-dev
  libsimdjson-dev libyaml-cpp-dev libpcre2-dev libutf8proc-dev libhwy-dev libgtest-dev)
# Fuzzers need clang's runtime.
check_packages=(clang libclang-rt-dev)
brew_packages=(cmake ninja pkg-config python3 cli11 nlohmann-json simdjson yaml-cpp pcre2 utf8proc
  highway googletest)

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    complain "packages are missing and this is neither root nor a machine with sudo; as root: $*"
    return 1
  fi
}

# install_packages PACKAGE…: those of Debian that are not there yet. Elsewhere the names are the
# list to look for.
install_packages() {
  if [ "$(uname)" = Darwin ]; then
    command -v brew >/dev/null || { complain "Homebrew is missing: see https://brew.sh"; return 1; }
    local package
    for package in "${brew_packages[@]}"; do
      brew list --versions "$package" >/dev/null 2>&1 || brew install --quiet "$package"
    done
    return
  fi
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian: these must be installed already: $*"
    return
  fi
  local package missing=()
  for package; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing ${missing[*]}"
  local log
  log=$(mktemp)
  # An update that fails does no harm where the lists at hand still serve.
  as_root apt-get -qq update >"$log" 2>&1 || true
  if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
    "${missing[@]}" >>"$log" 2>&1; then
    tail -30 "$log" >&2
    complain "apt-get could not install: ${missing[*]}"
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}

# build PRESET [TARGET…]: configures and builds; compilers speak only when something is wrong. On a
# build server (CI is set) the release's warnings are errors.
build() {
  local preset=$1 log options=()
  shift
  [ "$preset" = release ] && [ -n "${CI:-}" ] && options=(-DWICK_WERROR=ON)
  log=$(mktemp)
  if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
  local quiet=()
  [ -t 1 ] || quiet=(-- --quiet)
  cmake --build --preset "$preset" --parallel "$(cores)" ${1:+--target "$@"} "${quiet[@]}"
}

# elapsed SECONDS: "3 min 20 s"
elapsed() {
  if [ "$1" -lt 60 ]; then echo "$1 s"; else echo "$(($1 / 60)) min $(($1 % 60)) s"; fi
}
