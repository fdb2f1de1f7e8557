#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From nothing to a fine-tuned model: installs what is missing, builds wick, and teaches the small
# model inside it to turn questions about tables into SQL. Everything it writes is under build/ and
# out/quickstart/.
set -euo pipefail
cd "$(dirname "$0")"
source tools/install.sh
start=$SECONDS
out=out/quickstart
wick=build/wick

step() { printf '\n'; say "$*"; }

step "1. Packages and build"
install_packages "${build_packages[@]}"
build release wick_cli
say "   $wick is ready after $(elapsed $((SECONDS - start)))"

step "2. Data: tables, questions and SQL, made by tools/demo/make_sql.py"
rm -rf "$out"
python3 tools/demo/make_sql.py --out "$out/sql"
python3 tools/demo/make_corpus.py --out "$out/base" --scale 0
printf '   %s: %d rows to train on, %d held out, %d for the test; no table or question in two of them\n' \
  "$out/sql" $(for split in train valid test; do wc -l <"$out/sql/$split.jsonl"; done)

step "3. Before: what the model inside wick answers to questions of the test"
python3 tools/demo/quickstart.py ask "$wick" "$out"

step "   … measured on all of the test, and on the model's own kind of questions"
$wick eval --quiet --json --per-example --data "$out/sql/test.jsonl" >"$out/test_before.jsonl"
$wick eval --quiet --json --per-example --data "$out/base/base_questions.jsonl" >"$out/base_before.jsonl"
python3 tools/demo/quickstart.py numbers "$out" before

step "4. Training a LoRA adapter"
train=($wick train --data "$out/sql" --adapter-path "$out/adapter" --batch-size 16 --epochs 2
  --learning-rate 2e-3 --rank 8 --alpha 16)
echo "   ${train[*]}"
"${train[@]}" --json >"$out/train.jsonl"

step "5. After: the same questions, with the adapter"
python3 tools/demo/quickstart.py ask "$wick" "$out" --adapter-path "$out/adapter"
for set in sql/test base/base_questions; do
  name=${set##*/}
  $wick eval --quiet --json --per-example --adapter-path "$out/adapter" --data "$out/$set.jsonl" \
    >"$out/${name%_questions}_after.jsonl"
done

step "6. Numbers"
python3 tools/demo/quickstart.py numbers "$out" after
cat <<END

   Done in $(elapsed $((SECONDS - start))). Look at $out/adapter/report.html, then try:

   $wick chat --adapter-path $out/adapter
   $wick generate --adapter-path $out/adapter --prompt 'Table: boats(id, name, weight)\nQuestion: How many boats have weight above 12?'
   $wick data --data $out/sql
   $wick merge --adapter-path $out/adapter --save-path $out/merged
   $wick train --model FOLDER --data FOLDER --adapter-path FOLDER      your own model and data
   $wick --help
END
