#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests with the label peers, against the packages of requirements.txt: in a virtual
# environment that this makes, or with the interpreter that WICK_PEERS_PYTHON names.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tools/install.sh

python=${WICK_PEERS_PYTHON:-}
if [ -z "$python" ]; then
  [ "$(uname)" = Darwin ] || install_packages python3-venv
  [ -x .venv-peers/bin/python ] || python3 -m venv .venv-peers
  python=$PWD/.venv-peers/bin/python
  say "installing the packages of tools/peers/requirements.txt"
  "$python" -m pip install --quiet --disable-pip-version-check -r tools/peers/requirements.txt
fi
cmake --preset release -DWICK_PEERS_PYTHON="$python" >/dev/null
build release
ctest --test-dir build -L peers --no-tests=error --output-on-failure
