#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tools/peers/check_adapters.sh build/write_adapters PYTHON
# wick writes an adapter for each golden model and one of each kind; PEFT loads it and must compute wick's logits.
set -euo pipefail
writer=$1 python=$2
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$writer" "$out"
status=0
for adapter in "$out"/*/; do
  name=$(basename "$adapter")
  printf '%s: ' "$name"
  "$python" "$here/check_adapter.py" "$here/../../tests/golden/$(cat "$adapter/model.txt")" "$adapter" \
    "$adapter/logits.safetensors" || status=1
done
exit $status
