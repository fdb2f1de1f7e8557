#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rebuilds the embedded model from nothing: text, tokenizer, random weights, training by wick.
#   tools/demo/build.sh [OUT] [WICK]      OUT: out/demo, WICK: build/wick
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-out/demo}
wick=${2:-build/wick}

python3 "$here/make_corpus.py" --out "$out/corpus" --seed 1 --scale 1
python3 "$here/train_tokenizer.py" --data "$out/corpus/train.jsonl" --out "$out/start"
python3 "$here/make_sql.py" --out "$out/sql" --seed 1
python3 "$here/check_data.py" --base "$out/corpus" --sql "$out/sql"
cp "$here/config.json" "$out/start/"

"$wick" train --fine-tune-type full --random-weights --model "$out/start" --data "$out/corpus" \
  --adapter-path "$out/model" --save-dtype bf16 --seed 1 --no-mask-prompt \
  --batch-size 64 --epochs 1 --max-seq-length 256 \
  --learning-rate 2e-3 --lr-schedule cosine --weight-decay 0.01 --grad-clip 1.0

echo "the base on its own questions:"
"$wick" eval --model "$out/model" --data "$out/corpus/base_questions.jsonl"
echo "the base on the task it must not know:"
"$wick" eval --model "$out/model" --data "$out/sql/test.jsonl"
