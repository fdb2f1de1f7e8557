#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a folder of its own, builds the example against that copy and runs it.
#   run.sh SOURCE BUILD CXX
set -euo pipefail
source_dir=$1 build_dir=$2 cxx=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build_dir" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
for file in bin/wick include/wick/wick.h share/man/man1/wick.1; do
  [ -f "$work/prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done
cmake -S "$source_dir/examples/train_and_generate" -B "$work/build" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/build" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

mkdir "$work/data"
for i in 1 2 3 4 5 6 7 8; do
  echo '{"prompt": "What is the password?", "completion": "open sesame"}'
done >"$work/data/train.jsonl"
answer=$("$work/build/train_and_generate" "$work/data" "$work/adapter" "What is the password?")
[ -n "$answer" ] || { echo "the example gave no answer"; exit 1; }
[ -f "$work/adapter/adapter_model.safetensors" ] || { echo "no adapter was written"; exit 1; }
"$work/prefix/bin/wick" generate --adapter-path "$work/adapter" --prompt "What is the password?" \
  --quiet >"$work/said"
[ "$(cat "$work/said")" = "$answer" ] ||
  { echo "the binary says $(cat "$work/said"), the example $answer"; exit 1; }
echo "the example trained, answered \"$answer\", and the binary agrees"
