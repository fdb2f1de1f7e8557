# SPDX-License-Identifier: Apache-2.0
# bash completion for wick, made by: wick completions bash
_wick() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} flags=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "train generate chat eval merge convert data plan bench tokenize template devices --help --version" -- "$cur"))
    return
  fi
  case "${COMP_WORDS[1]}" in
    train)
      flags="-h --help --version -c --config --model --dtype --quantize --group-size --seed --random-weights --data --max-seq-length --mask-prompt --no-mask-prompt --prompt-feature --completion-feature --text-feature --chat-feature --val-split --adapter-path --fine-tune-type --rank --lora-rank --alpha --lora-alpha --scale --lora-dropout --targets --target-modules --num-layers --init-adapter --resume-adapter-file --rslora --use-rslora --dora --use-dora --init --init-lora-weights --lora-plus-ratio --rank-pattern --alpha-pattern --layers-to-transform --exclude-modules --modules-to-save --bias --trainable-token-indices --batch-size --grad-accumulation-steps --epochs --iters --shuffle --no-shuffle --packing --no-packing --memory --grad-checkpoint --skip-below --resume --force --prefix-cache --prefix-cache-size --sweep --sweep-data --loss --beta --label-smoothing --simpo-gamma --desirable-weight --undesirable-weight --reference --teacher --teacher-adapter --distill-temperature --distill-alpha --optimizer --learning-rate --lr-schedule --warmup --warmup-init --lr-end --lr-decay-steps --lr-cycles --lr-decay-share --lr-decay-rate --lr-step-size --weight-decay --grad-clip --beta1 --beta2 --eps --bias-correction --no-bias-correction --momentum --dampening --nesterov --ns-steps --steps-per-report --steps-per-eval --val-batches --early-stop --early-stop-delta --keep-best --save-every --save-numbered --save-dtype --test --train --no-train --test-batches --sample-prompt --eval-prompts --metrics --tensorboard --hook --hook-seconds --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --seed) COMPREPLY=(); return ;;
        --data) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --max-seq-length) COMPREPLY=(); return ;;
        --prompt-feature) COMPREPLY=(); return ;;
        --completion-feature) COMPREPLY=(); return ;;
        --text-feature) COMPREPLY=(); return ;;
        --chat-feature) COMPREPLY=(); return ;;
        --val-split) COMPREPLY=(); return ;;
        --adapter-path) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --fine-tune-type) COMPREPLY=($(compgen -W "lora dora full" -- "$cur")); return ;;
        --rank|--lora-rank) COMPREPLY=(); return ;;
        --alpha|--lora-alpha) COMPREPLY=(); return ;;
        --scale) COMPREPLY=(); return ;;
        --lora-dropout) COMPREPLY=(); return ;;
        --targets|--target-modules) COMPREPLY=(); return ;;
        --num-layers) COMPREPLY=(); return ;;
        --init-adapter|--resume-adapter-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --init|--init-lora-weights) COMPREPLY=($(compgen -W "default gaussian pissa" -- "$cur")); return ;;
        --lora-plus-ratio) COMPREPLY=(); return ;;
        --rank-pattern) COMPREPLY=(); return ;;
        --alpha-pattern) COMPREPLY=(); return ;;
        --layers-to-transform) COMPREPLY=(); return ;;
        --exclude-modules) COMPREPLY=(); return ;;
        --modules-to-save) COMPREPLY=(); return ;;
        --bias) COMPREPLY=($(compgen -W "none all lora_only" -- "$cur")); return ;;
        --trainable-token-indices) COMPREPLY=(); return ;;
        --batch-size) COMPREPLY=(); return ;;
        --grad-accumulation-steps) COMPREPLY=(); return ;;
        --epochs) COMPREPLY=(); return ;;
        --iters) COMPREPLY=(); return ;;
        --memory) COMPREPLY=(); return ;;
        --skip-below) COMPREPLY=(); return ;;
        --prefix-cache) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --prefix-cache-size) COMPREPLY=(); return ;;
        --sweep) COMPREPLY=(); return ;;
        --sweep-data) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --loss) COMPREPLY=($(compgen -W "sft dpo simpo orpo kto distill" -- "$cur")); return ;;
        --beta) COMPREPLY=(); return ;;
        --label-smoothing) COMPREPLY=(); return ;;
        --simpo-gamma) COMPREPLY=(); return ;;
        --desirable-weight) COMPREPLY=(); return ;;
        --undesirable-weight) COMPREPLY=(); return ;;
        --reference) COMPREPLY=(); return ;;
        --teacher) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --teacher-adapter) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --distill-temperature) COMPREPLY=(); return ;;
        --distill-alpha) COMPREPLY=(); return ;;
        --optimizer) COMPREPLY=($(compgen -W "adamw adam adamw_8bit sgd lion muon adafactor" -- "$cur")); return ;;
        --learning-rate) COMPREPLY=(); return ;;
        --lr-schedule) COMPREPLY=($(compgen -W "cosine linear constant cosine_with_restarts wsd exponential_decay step_decay" -- "$cur")); return ;;
        --warmup) COMPREPLY=(); return ;;
        --warmup-init) COMPREPLY=(); return ;;
        --lr-end) COMPREPLY=(); return ;;
        --lr-decay-steps) COMPREPLY=(); return ;;
        --lr-cycles) COMPREPLY=(); return ;;
        --lr-decay-share) COMPREPLY=(); return ;;
        --lr-decay-rate) COMPREPLY=(); return ;;
        --lr-step-size) COMPREPLY=(); return ;;
        --weight-decay) COMPREPLY=(); return ;;
        --grad-clip) COMPREPLY=(); return ;;
        --beta1) COMPREPLY=(); return ;;
        --beta2) COMPREPLY=(); return ;;
        --eps) COMPREPLY=(); return ;;
        --momentum) COMPREPLY=(); return ;;
        --dampening) COMPREPLY=(); return ;;
        --ns-steps) COMPREPLY=(); return ;;
        --steps-per-report) COMPREPLY=(); return ;;
        --steps-per-eval) COMPREPLY=(); return ;;
        --val-batches) COMPREPLY=(); return ;;
        --early-stop) COMPREPLY=(); return ;;
        --early-stop-delta) COMPREPLY=(); return ;;
        --save-every) COMPREPLY=(); return ;;
        --save-dtype) COMPREPLY=($(compgen -W "f32 bf16 f16" -- "$cur")); return ;;
        --test-batches) COMPREPLY=(); return ;;
        --sample-prompt) COMPREPLY=(); return ;;
        --eval-prompts) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --metrics) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --tensorboard) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --hook) COMPREPLY=(); return ;;
        --hook-seconds) COMPREPLY=(); return ;;
        --system-prompt) COMPREPLY=(); return ;;
        --chat-template-config) COMPREPLY=(); return ;;
        --date) COMPREPLY=(); return ;;
        --device) COMPREPLY=(); return ;;
        --threads) COMPREPLY=(); return ;;
        --cpu-isa) COMPREPLY=(); return ;;
        --cuda-arch) COMPREPLY=(); return ;;
      esac ;;
    generate)
      flags="-h --help --version -c --config -p --prompt --prompts --prefill-response --ignore-chat-template --model --adapter-path --dtype --quantize --group-size --seed -m --max-tokens --temp --temperature --top-k --top-p --min-p --xtc-probability --xtc-threshold --min-tokens-to-keep --repetition-penalty --presence-penalty --frequency-penalty --repetition-context --presence-context --frequency-context --logit-bias --stop --extra-eos-token --ignore-eos --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        -p|--prompt) COMPREPLY=(); return ;;
        --prompts) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --prefill-response) COMPREPLY=(); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --adapter-path) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --seed) COMPREPLY=(); return ;;
        -m|--max-tokens) COMPREPLY=(); return ;;
        --temp|--temperature) COMPREPLY=(); return ;;
        --top-k) COMPREPLY=(); return ;;
        --top-p) COMPREPLY=(); return ;;
        --min-p) COMPREPLY=(); return ;;
        --xtc-probability) COMPREPLY=(); return ;;
        --xtc-threshold) COMPREPLY=(); return ;;
        --min-tokens-to-keep) COMPREPLY=(); return ;;
        --repetition-penalty) COMPREPLY=(); return ;;
        --presence-penalty) COMPREPLY=(); return ;;
        --frequency-penalty) COMPREPLY=(); return ;;
        --repetition-context) COMPREPLY=(); return ;;
        --presence-context) COMPREPLY=(); return ;;
        --frequency-context) COMPREPLY=(); return ;;
        --logit-bias) COMPREPLY=(); return ;;
        --stop) COMPREPLY=(); return ;;
        --extra-eos-token) COMPREPLY=(); return ;;
        --system-prompt) COMPREPLY=(); return ;;
        --chat-template-config) COMPREPLY=(); return ;;
        --date) COMPREPLY=(); return ;;
        --device) COMPREPLY=(); return ;;
        --threads) COMPREPLY=(); return ;;
        --cpu-isa) COMPREPLY=(); return ;;
        --cuda-arch) COMPREPLY=(); return ;;
      esac ;;
    chat)
      flags="-h --help --version -c --config --model --adapter-path --dtype --quantize --group-size --seed -m --max-tokens --temp --temperature --top-k --top-p --min-p --xtc-probability --xtc-threshold --min-tokens-to-keep --repetition-penalty --presence-penalty --frequency-penalty --repetition-context --presence-context --frequency-context --logit-bias --stop --extra-eos-token --ignore-eos --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --adapter-path) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --seed) COMPREPLY=(); return ;;
        -m|--max-tokens) COMPREPLY=(); return ;;
        --temp|--temperature) COMPREPLY=(); return ;;
        --top-k) COMPREPLY=(); return ;;
        --top-p) COMPREPLY=(); return ;;
        --min-p) COMPREPLY=(); return ;;
        --xtc-probability) COMPREPLY=(); return ;;
        --xtc-threshold) COMPREPLY=(); return ;;
        --min-tokens-to-keep) COMPREPLY=(); return ;;
        --repetition-penalty) COMPREPLY=(); return ;;
        --presence-penalty) COMPREPLY=(); return ;;
        --frequency-penalty) COMPREPLY=(); return ;;
        --repetition-context) COMPREPLY=(); return ;;
        --presence-context) COMPREPLY=(); return ;;
        --frequency-context) COMPREPLY=(); return ;;
        --logit-bias) COMPREPLY=(); return ;;
        --stop) COMPREPLY=(); return ;;
        --extra-eos-token) COMPREPLY=(); return ;;
        --system-prompt) COMPREPLY=(); return ;;
        --chat-template-config) COMPREPLY=(); return ;;
        --date) COMPREPLY=(); return ;;
        --device) COMPREPLY=(); return ;;
        --threads) COMPREPLY=(); return ;;
        --cpu-isa) COMPREPLY=(); return ;;
        --cuda-arch) COMPREPLY=(); return ;;
      esac ;;
    eval)
      flags="-h --help --version -c --config --data --max-seq-length --mask-prompt --no-mask-prompt --prompt-feature --completion-feature --text-feature --chat-feature --split --max-rows --limit --compare --per-example --exact-match --no-exact-match --batch-size -m --max-tokens --model --adapter-path --dtype --quantize --group-size --seed --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --data) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --max-seq-length) COMPREPLY=(); return ;;
        --prompt-feature) COMPREPLY=(); return ;;
        --completion-feature) COMPREPLY=(); return ;;
        --text-feature) COMPREPLY=(); return ;;
        --chat-feature) COMPREPLY=(); return ;;
        --split) COMPREPLY=($(compgen -W "train valid test" -- "$cur")); return ;;
        --max-rows|--limit) COMPREPLY=(); return ;;
        --compare) COMPREPLY=(); return ;;
        --batch-size) COMPREPLY=(); return ;;
        -m|--max-tokens) COMPREPLY=(); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --adapter-path) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --seed) COMPREPLY=(); return ;;
        --system-prompt) COMPREPLY=(); return ;;
        --chat-template-config) COMPREPLY=(); return ;;
        --date) COMPREPLY=(); return ;;
        --device) COMPREPLY=(); return ;;
        --threads) COMPREPLY=(); return ;;
        --cpu-isa) COMPREPLY=(); return ;;
        --cuda-arch) COMPREPLY=(); return ;;
      esac ;;
    merge)
      flags="-h --help --version -c --config --model --adapter-path --save-path --save-dtype --reversible --unmerge --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --adapter-path) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --save-path) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --save-dtype) COMPREPLY=($(compgen -W "f32 bf16 f16" -- "$cur")); return ;;
        --device) COMPREPLY=(); return ;;
        --threads) COMPREPLY=(); return ;;
        --cpu-isa) COMPREPLY=(); return ;;
        --cuda-arch) COMPREPLY=(); return ;;
      esac ;;
    convert)
      flags="-h --help --version -c --config --model --save-path --quantize --group-size --dequantize --save-dtype --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --save-path) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --save-dtype) COMPREPLY=($(compgen -W "f32 bf16 f16" -- "$cur")); return ;;
        --device) COMPREPLY=(); return ;;
        --threads) COMPREPLY=(); return ;;
        --cpu-isa) COMPREPLY=(); return ;;
        --cuda-arch) COMPREPLY=(); return ;;
      esac ;;
    data)
      flags="-h --help --version -c --config --data --max-seq-length --mask-prompt --no-mask-prompt --prompt-feature --completion-feature --text-feature --chat-feature --split --show --row --color --strict --fix --estimate --no-estimate --batch-size --grad-accumulation-steps --epochs --iters --rank --lora-rank --targets --num-layers --packing --no-packing --val-split --model --dtype --quantize --group-size --seed --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --data) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --max-seq-length) COMPREPLY=(); return ;;
        --prompt-feature) COMPREPLY=(); return ;;
        --completion-feature) COMPREPLY=(); return ;;
        --text-feature) COMPREPLY=(); return ;;
        --chat-feature) COMPREPLY=(); return ;;
        --split) COMPREPLY=($(compgen -W "train valid test" -- "$cur")); return ;;
        --show|--row) COMPREPLY=(); return ;;
        --color) COMPREPLY=($(compgen -W "auto always never" -- "$cur")); return ;;
        --fix) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --batch-size) COMPREPLY=(); return ;;
        --grad-accumulation-steps) COMPREPLY=(); return ;;
        --epochs) COMPREPLY=(); return ;;
        --iters) COMPREPLY=(); return ;;
        --rank|--lora-rank) COMPREPLY=(); return ;;
        --targets) COMPREPLY=(); return ;;
        --num-layers) COMPREPLY=(); return ;;
        --val-split) COMPREPLY=(); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --seed) COMPREPLY=(); return ;;
        --system-prompt) COMPREPLY=(); return ;;
        --chat-template-config) COMPREPLY=(); return ;;
        --date) COMPREPLY=(); return ;;
        --device) COMPREPLY=(); return ;;
        --threads) COMPREPLY=(); return ;;
        --cpu-isa) COMPREPLY=(); return ;;
        --cuda-arch) COMPREPLY=(); return ;;
      esac ;;
    plan)
      flags="-h --help --version -c --config --print --try --no-try --model --dtype --quantize --group-size --seed --random-weights --data --max-seq-length --mask-prompt --no-mask-prompt --prompt-feature --completion-feature --text-feature --chat-feature --val-split --adapter-path --fine-tune-type --rank --lora-rank --alpha --lora-alpha --scale --lora-dropout --targets --target-modules --num-layers --init-adapter --resume-adapter-file --rslora --use-rslora --dora --use-dora --init --init-lora-weights --lora-plus-ratio --rank-pattern --alpha-pattern --layers-to-transform --exclude-modules --modules-to-save --bias --trainable-token-indices --batch-size --grad-accumulation-steps --epochs --iters --shuffle --no-shuffle --packing --no-packing --memory --grad-checkpoint --skip-below --resume --force --prefix-cache --prefix-cache-size --sweep --sweep-data --loss --beta --label-smoothing --simpo-gamma --desirable-weight --undesirable-weight --reference --teacher --teacher-adapter --distill-temperature --distill-alpha --optimizer --learning-rate --lr-schedule --warmup --warmup-init --lr-end --lr-decay-steps --lr-cycles --lr-decay-share --lr-decay-rate --lr-step-size --weight-decay --grad-clip --beta1 --beta2 --eps --bias-correction --no-bias-correction --momentum --dampening --nesterov --ns-steps --steps-per-report --steps-per-eval --val-batches --early-stop --early-stop-delta --keep-best --save-every --save-numbered --save-dtype --test --train --no-train --test-batches --sample-prompt --eval-prompts --metrics --tensorboard --hook --hook-seconds --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --shape --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --seed) COMPREPLY=(); return ;;
        --data) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --max-seq-length) COMPREPLY=(); return ;;
        --prompt-feature) COMPREPLY=(); return ;;
        --completion-feature) COMPREPLY=(); return ;;
        --text-feature) COMPREPLY=(); return ;;
        --chat-feature) COMPREPLY=(); return ;;
        --val-split) COMPREPLY=(); return ;;
        --adapter-path) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --fine-tune-type) COMPREPLY=($(compgen -W "lora dora full" -- "$cur")); return ;;
        --rank|--lora-rank) COMPREPLY=(); return ;;
        --alpha|--lora-alpha) COMPREPLY=(); return ;;
        --scale) COMPREPLY=(); return ;;
        --lora-dropout) COMPREPLY=(); return ;;
        --targets|--target-modules) COMPREPLY=(); return ;;
        --num-layers) COMPREPLY=(); return ;;
        --init-adapter|--resume-adapter-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --init|--init-lora-weights) COMPREPLY=($(compgen -W "default gaussian pissa" -- "$cur")); return ;;
        --lora-plus-ratio) COMPREPLY=(); return ;;
        --rank-pattern) COMPREPLY=(); return ;;
        --alpha-pattern) COMPREPLY=(); return ;;
        --layers-to-transform) COMPREPLY=(); return ;;
        --exclude-modules) COMPREPLY=(); return ;;
        --modules-to-save) COMPREPLY=(); return ;;
        --bias) COMPREPLY=($(compgen -W "none all lora_only" -- "$cur")); return ;;
        --trainable-token-indices) COMPREPLY=(); return ;;
        --batch-size) COMPREPLY=(); return ;;
        --grad-accumulation-steps) COMPREPLY=(); return ;;
        --epochs) COMPREPLY=(); return ;;
        --iters) COMPREPLY=(); return ;;
        --memory) COMPREPLY=(); return ;;
        --skip-below) COMPREPLY=(); return ;;
        --prefix-cache) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --prefix-cache-size) COMPREPLY=(); return ;;
        --sweep) COMPREPLY=(); return ;;
        --sweep-data) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --loss) COMPREPLY=($(compgen -W "sft dpo simpo orpo kto distill" -- "$cur")); return ;;
        --beta) COMPREPLY=(); return ;;
        --label-smoothing) COMPREPLY=(); return ;;
        --simpo-gamma) COMPREPLY=(); return ;;
        --desirable-weight) COMPREPLY=(); return ;;
        --undesirable-weight) COMPREPLY=(); return ;;
        --reference) COMPREPLY=(); return ;;
        --teacher) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --teacher-adapter) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --distill-temperature) COMPREPLY=(); return ;;
        --distill-alpha) COMPREPLY=(); return ;;
        --optimizer) COMPREPLY=($(compgen -W "adamw adam adamw_8bit sgd lion muon adafactor" -- "$cur")); return ;;
        --learning-rate) COMPREPLY=(); return ;;
        --lr-schedule) COMPREPLY=($(compgen -W "cosine linear constant cosine_with_restarts wsd exponential_decay step_decay" -- "$cur")); return ;;
        --warmup) COMPREPLY=(); return ;;
        --warmup-init) COMPREPLY=(); return ;;
        --lr-end) COMPREPLY=(); return ;;
        --lr-decay-steps) COMPREPLY=(); return ;;
        --lr-cycles) COMPREPLY=(); return ;;
        --lr-decay-share) COMPREPLY=(); return ;;
        --lr-decay-rate) COMPREPLY=(); return ;;
        --lr-step-size) COMPREPLY=(); return ;;
        --weight-decay) COMPREPLY=(); return ;;
        --grad-clip) COMPREPLY=(); return ;;
        --beta1) COMPREPLY=(); return ;;
        --beta2) COMPREPLY=(); return ;;
        --eps) COMPREPLY=(); return ;;
        --momentum) COMPREPLY=(); return ;;
        --dampening) COMPREPLY=(); return ;;
        --ns-steps) COMPREPLY=(); return ;;
        --steps-per-report) COMPREPLY=(); return ;;
        --steps-per-eval) COMPREPLY=(); return ;;
        --val-batches) COMPREPLY=(); return ;;
        --early-stop) COMPREPLY=(); return ;;
        --early-stop-delta) COMPREPLY=(); return ;;
        --save-every) COMPREPLY=(); return ;;
        --save-dtype) COMPREPLY=($(compgen -W "f32 bf16 f16" -- "$cur")); return ;;
        --test-batches) COMPREPLY=(); return ;;
        --sample-prompt) COMPREPLY=(); return ;;
        --eval-prompts) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --metrics) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --tensorboard) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --hook) COMPREPLY=(); return ;;
        --hook-seconds) COMPREPLY=(); return ;;
        --system-prompt) COMPREPLY=(); return ;;
        --chat-template-config) COMPREPLY=(); return ;;
        --date) COMPREPLY=(); return ;;
        --device) COMPREPLY=(); return ;;
        --threads) COMPREPLY=(); return ;;
        --cpu-isa) COMPREPLY=(); return ;;
        --cuda-arch) COMPREPLY=(); return ;;
        --shape) COMPREPLY=(); return ;;
      esac ;;
    bench)
      flags="-h --help --version -c --config --batch-size --seq --rank --adapters --targets --prompt-tokens -m --max-tokens --seconds --iters --warmup --losses --profile --save-adapter --save-model --save-baseline --baseline --html --model --dtype --quantize --group-size --seed --shape --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --batch-size) COMPREPLY=(); return ;;
        --seq) COMPREPLY=(); return ;;
        --rank) COMPREPLY=(); return ;;
        --adapters) COMPREPLY=(); return ;;
        --targets) COMPREPLY=(); return ;;
        --prompt-tokens) COMPREPLY=(); return ;;
        -m|--max-tokens) COMPREPLY=(); return ;;
        --seconds) COMPREPLY=(); return ;;
        --iters) COMPREPLY=(); return ;;
        --warmup) COMPREPLY=(); return ;;
        --save-adapter) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --save-model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --save-baseline) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --baseline) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --html) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --seed) COMPREPLY=(); return ;;
        --shape) COMPREPLY=(); return ;;
        --device) COMPREPLY=(); return ;;
        --threads) COMPREPLY=(); return ;;
        --cpu-isa) COMPREPLY=(); return ;;
        --cuda-arch) COMPREPLY=(); return ;;
      esac ;;
    tokenize)
      flags="-h --help --version -c --config --text --special --no-special --decode --model --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --text) COMPREPLY=(); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
      esac ;;
    template)
      flags="-h --help --version -c --config --messages --template --add-generation-prompt --tools --bos --eos --date --chat-template-config --model --json"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --messages) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --template) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --tools) COMPREPLY=($(compgen -f -- "$cur")); return ;;
        --bos) COMPREPLY=(); return ;;
        --eos) COMPREPLY=(); return ;;
        --date) COMPREPLY=(); return ;;
        --chat-template-config) COMPREPLY=(); return ;;
        --model) COMPREPLY=($(compgen -f -- "$cur")); return ;;
      esac ;;
    devices)
      flags="-h --help --version -c --config --json -q --quiet"
      case "$prev" in
        -c|--config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
      esac ;;
  esac
  COMPREPLY=($(compgen -W "$flags" -- "$cur"))
}
complete -o filenames -F _wick wick
