# SPDX-License-Identifier: Apache-2.0
# bash completion for wick, made by: wick completions bash
_wick_files() {
  local IFS=$'\n'  # a name may have blanks
  COMPREPLY=($(compgen -f -- "$cur"))
}
_wick() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} flags=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "train generate chat eval merge convert data plan bench tokenize template devices --help --version" -- "$cur"))
    return
  fi
  case "${COMP_WORDS[1]}" in
    train)
      flags="-h --help --version -c --config --model --dtype --quantize --group-size --seed --random-weights --data --max-seq-length --mask-prompt --no-mask-prompt --prompt-feature --completion-feature --text-feature --chat-feature --val-split --adapter-path --fine-tune-type --rank --lora-rank --alpha --lora-alpha --scale --lora-dropout --targets --target-modules --num-layers --init-adapter --resume-adapter-file --rslora --use-rslora --dora --use-dora --init --init-lora-weights --lora-plus-ratio --rank-pattern --alpha-pattern --layers-to-transform --exclude-modules --modules-to-save --bias --trainable-token-indices --batch-size --grad-accumulation-steps --epochs --iters --shuffle --no-shuffle --packing --no-packing --memory --grad-checkpoint --skip-below --resume --force --prefix-cache --prefix-cache-size --sweep --sweep-data --loss --beta --label-smoothing --simpo-gamma --desirable-weight --undesirable-weight --reference --teacher --teacher-adapter --distill-temperature --distill-alpha --optimizer --learning-rate --lr-schedule --warmup --warmup-init --lr-end --lr-decay-steps --lr-cycles --lr-decay-share --lr-decay-rate --lr-step-size --weight-decay --grad-clip --beta1 --beta2 --eps --bias-correction --no-bias-correction --momentum --dampening --nesterov --no-nesterov --ns-steps --steps-per-report --steps-per-eval --val-batches --early-stop --early-stop-delta --keep-best --save-every --save-numbered --save-dtype --test --train --no-train --test-batches --sample-prompt --eval-prompts --metrics --tensorboard --hook --hook-seconds --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --fine-tune-type) COMPREPLY=($(compgen -W "lora dora full" -- "$cur")); return ;;
        --init|--init-lora-weights) COMPREPLY=($(compgen -W "default gaussian pissa" -- "$cur")); return ;;
        --bias) COMPREPLY=($(compgen -W "none all lora_only" -- "$cur")); return ;;
        --loss) COMPREPLY=($(compgen -W "sft dpo simpo orpo kto distill" -- "$cur")); return ;;
        --optimizer) COMPREPLY=($(compgen -W "adamw adam adamw_8bit sgd lion muon adafactor" -- "$cur")); return ;;
        --lr-schedule) COMPREPLY=($(compgen -W "cosine linear constant cosine_with_restarts wsd exponential_decay step_decay" -- "$cur")); return ;;
        --save-dtype) COMPREPLY=($(compgen -W "f32 bf16 f16" -- "$cur")); return ;;
        -c|--config|--model|--data|--adapter-path|--init-adapter|--resume-adapter-file|--prefix-cache|--sweep-data|--teacher|--teacher-adapter|--eval-prompts|--metrics|--tensorboard) _wick_files; return ;;
        --seed|--max-seq-length|--prompt-feature|--completion-feature|--text-feature|--chat-feature|--val-split|--rank|--lora-rank|--alpha|--lora-alpha|--scale|--lora-dropout|--targets|--target-modules|--num-layers|--lora-plus-ratio|--rank-pattern|--alpha-pattern|--layers-to-transform|--exclude-modules|--modules-to-save|--trainable-token-indices|--batch-size|--grad-accumulation-steps|--epochs|--iters|--memory|--skip-below|--prefix-cache-size|--sweep|--beta|--label-smoothing|--simpo-gamma|--desirable-weight|--undesirable-weight|--reference|--distill-temperature|--distill-alpha|--learning-rate|--warmup|--warmup-init|--lr-end|--lr-decay-steps|--lr-cycles|--lr-decay-share|--lr-decay-rate|--lr-step-size|--weight-decay|--grad-clip|--beta1|--beta2|--eps|--momentum|--dampening|--ns-steps|--steps-per-report|--steps-per-eval|--val-batches|--early-stop|--early-stop-delta|--save-every|--test-batches|--sample-prompt|--hook|--hook-seconds|--system-prompt|--chat-template-config|--date|--device|--threads|--cpu-isa|--cuda-arch) return ;;
      esac ;;
    generate)
      flags="-h --help --version -c --config -p --prompt --prompts --prefill-response --ignore-chat-template --model --adapter-path --dtype --quantize --group-size --seed -m --max-tokens --temp --temperature --top-k --top-p --min-p --xtc-probability --xtc-threshold --min-tokens-to-keep --repetition-penalty --presence-penalty --frequency-penalty --repetition-context --presence-context --frequency-context --logit-bias --stop --extra-eos-token --ignore-eos --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        -c|--config|--prompts|--model|--adapter-path) _wick_files; return ;;
        -p|--prompt|--prefill-response|--seed|-m|--max-tokens|--temp|--temperature|--top-k|--top-p|--min-p|--xtc-probability|--xtc-threshold|--min-tokens-to-keep|--repetition-penalty|--presence-penalty|--frequency-penalty|--repetition-context|--presence-context|--frequency-context|--logit-bias|--stop|--extra-eos-token|--system-prompt|--chat-template-config|--date|--device|--threads|--cpu-isa|--cuda-arch) return ;;
      esac ;;
    chat)
      flags="-h --help --version -c --config --model --adapter-path --dtype --quantize --group-size --seed -m --max-tokens --temp --temperature --top-k --top-p --min-p --xtc-probability --xtc-threshold --min-tokens-to-keep --repetition-penalty --presence-penalty --frequency-penalty --repetition-context --presence-context --frequency-context --logit-bias --stop --extra-eos-token --ignore-eos --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        -c|--config|--model|--adapter-path) _wick_files; return ;;
        --seed|-m|--max-tokens|--temp|--temperature|--top-k|--top-p|--min-p|--xtc-probability|--xtc-threshold|--min-tokens-to-keep|--repetition-penalty|--presence-penalty|--frequency-penalty|--repetition-context|--presence-context|--frequency-context|--logit-bias|--stop|--extra-eos-token|--system-prompt|--chat-template-config|--date|--device|--threads|--cpu-isa|--cuda-arch) return ;;
      esac ;;
    eval)
      flags="-h --help --version -c --config --data --max-seq-length --mask-prompt --no-mask-prompt --prompt-feature --completion-feature --text-feature --chat-feature --split --max-rows --limit --compare --per-example --exact-match --no-exact-match --batch-size -m --max-tokens --model --adapter-path --dtype --quantize --group-size --seed --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        --split) COMPREPLY=($(compgen -W "train valid test" -- "$cur")); return ;;
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        -c|--config|--data|--model|--adapter-path) _wick_files; return ;;
        --max-seq-length|--prompt-feature|--completion-feature|--text-feature|--chat-feature|--max-rows|--limit|--compare|--batch-size|-m|--max-tokens|--seed|--system-prompt|--chat-template-config|--date|--device|--threads|--cpu-isa|--cuda-arch) return ;;
      esac ;;
    merge)
      flags="-h --help --version -c --config --model --adapter-path --save-path --save-dtype --reversible --overwrite --unmerge --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        --save-dtype) COMPREPLY=($(compgen -W "f32 bf16 f16" -- "$cur")); return ;;
        -c|--config|--model|--adapter-path|--save-path) _wick_files; return ;;
        --device|--threads|--cpu-isa|--cuda-arch) return ;;
      esac ;;
    convert)
      flags="-h --help --version -c --config --model --save-path --quantize --group-size --allow-requantize --dequantize --save-dtype --overwrite --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --save-dtype) COMPREPLY=($(compgen -W "f32 bf16 f16" -- "$cur")); return ;;
        -c|--config|--model|--save-path) _wick_files; return ;;
        --device|--threads|--cpu-isa|--cuda-arch) return ;;
      esac ;;
    data)
      flags="-h --help --version -c --config --data --max-seq-length --mask-prompt --no-mask-prompt --prompt-feature --completion-feature --text-feature --chat-feature --split --show --row --color --strict --fix --overwrite --estimate --no-estimate --batch-size --grad-accumulation-steps --epochs --iters --rank --lora-rank --targets --num-layers --packing --no-packing --val-split --model --dtype --quantize --group-size --seed --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        --split) COMPREPLY=($(compgen -W "train valid test" -- "$cur")); return ;;
        --color) COMPREPLY=($(compgen -W "auto always never" -- "$cur")); return ;;
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        -c|--config|--data|--fix|--model) _wick_files; return ;;
        --max-seq-length|--prompt-feature|--completion-feature|--text-feature|--chat-feature|--show|--row|--batch-size|--grad-accumulation-steps|--epochs|--iters|--rank|--lora-rank|--targets|--num-layers|--val-split|--seed|--system-prompt|--chat-template-config|--date|--device|--threads|--cpu-isa|--cuda-arch) return ;;
      esac ;;
    plan)
      flags="-h --help --version -c --config --print --try --no-try --model --dtype --quantize --group-size --seed --random-weights --data --max-seq-length --mask-prompt --no-mask-prompt --prompt-feature --completion-feature --text-feature --chat-feature --val-split --adapter-path --fine-tune-type --rank --lora-rank --alpha --lora-alpha --scale --lora-dropout --targets --target-modules --num-layers --init-adapter --resume-adapter-file --rslora --use-rslora --dora --use-dora --init --init-lora-weights --lora-plus-ratio --rank-pattern --alpha-pattern --layers-to-transform --exclude-modules --modules-to-save --bias --trainable-token-indices --batch-size --grad-accumulation-steps --epochs --iters --shuffle --no-shuffle --packing --no-packing --memory --grad-checkpoint --skip-below --resume --force --prefix-cache --prefix-cache-size --sweep --sweep-data --loss --beta --label-smoothing --simpo-gamma --desirable-weight --undesirable-weight --reference --teacher --teacher-adapter --distill-temperature --distill-alpha --optimizer --learning-rate --lr-schedule --warmup --warmup-init --lr-end --lr-decay-steps --lr-cycles --lr-decay-share --lr-decay-rate --lr-step-size --weight-decay --grad-clip --beta1 --beta2 --eps --bias-correction --no-bias-correction --momentum --dampening --nesterov --no-nesterov --ns-steps --steps-per-report --steps-per-eval --val-batches --early-stop --early-stop-delta --keep-best --save-every --save-numbered --save-dtype --test --train --no-train --test-batches --sample-prompt --eval-prompts --metrics --tensorboard --hook --hook-seconds --system-prompt --chat-template-config --date --device --threads --cpu-isa --cuda-arch --shape --json -q --quiet"
      case "$prev" in
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        --fine-tune-type) COMPREPLY=($(compgen -W "lora dora full" -- "$cur")); return ;;
        --init|--init-lora-weights) COMPREPLY=($(compgen -W "default gaussian pissa" -- "$cur")); return ;;
        --bias) COMPREPLY=($(compgen -W "none all lora_only" -- "$cur")); return ;;
        --loss) COMPREPLY=($(compgen -W "sft dpo simpo orpo kto distill" -- "$cur")); return ;;
        --optimizer) COMPREPLY=($(compgen -W "adamw adam adamw_8bit sgd lion muon adafactor" -- "$cur")); return ;;
        --lr-schedule) COMPREPLY=($(compgen -W "cosine linear constant cosine_with_restarts wsd exponential_decay step_decay" -- "$cur")); return ;;
        --save-dtype) COMPREPLY=($(compgen -W "f32 bf16 f16" -- "$cur")); return ;;
        -c|--config|--model|--data|--adapter-path|--init-adapter|--resume-adapter-file|--prefix-cache|--sweep-data|--teacher|--teacher-adapter|--eval-prompts|--metrics|--tensorboard) _wick_files; return ;;
        --seed|--max-seq-length|--prompt-feature|--completion-feature|--text-feature|--chat-feature|--val-split|--rank|--lora-rank|--alpha|--lora-alpha|--scale|--lora-dropout|--targets|--target-modules|--num-layers|--lora-plus-ratio|--rank-pattern|--alpha-pattern|--layers-to-transform|--exclude-modules|--modules-to-save|--trainable-token-indices|--batch-size|--grad-accumulation-steps|--epochs|--iters|--memory|--skip-below|--prefix-cache-size|--sweep|--beta|--label-smoothing|--simpo-gamma|--desirable-weight|--undesirable-weight|--reference|--distill-temperature|--distill-alpha|--learning-rate|--warmup|--warmup-init|--lr-end|--lr-decay-steps|--lr-cycles|--lr-decay-share|--lr-decay-rate|--lr-step-size|--weight-decay|--grad-clip|--beta1|--beta2|--eps|--momentum|--dampening|--ns-steps|--steps-per-report|--steps-per-eval|--val-batches|--early-stop|--early-stop-delta|--save-every|--test-batches|--sample-prompt|--hook|--hook-seconds|--system-prompt|--chat-template-config|--date|--device|--threads|--cpu-isa|--cuda-arch|--shape) return ;;
      esac ;;
    bench)
      flags="-h --help --version -c --config --batch-size --seq --rank --adapters --targets --prompt-tokens -m --max-tokens --seconds --iters --warmup --losses --profile --save-adapter --save-model --save-baseline --baseline --html --model --dtype --quantize --group-size --seed --shape --device --threads --cpu-isa --cuda-arch --json -q --quiet"
      case "$prev" in
        --dtype) COMPREPLY=($(compgen -W "auto f32 bf16" -- "$cur")); return ;;
        --quantize) COMPREPLY=($(compgen -W "8 4" -- "$cur")); return ;;
        --group-size) COMPREPLY=($(compgen -W "32 64 128" -- "$cur")); return ;;
        -c|--config|--save-adapter|--save-model|--save-baseline|--baseline|--html|--model) _wick_files; return ;;
        --batch-size|--seq|--rank|--adapters|--targets|--prompt-tokens|-m|--max-tokens|--seconds|--iters|--warmup|--seed|--shape|--device|--threads|--cpu-isa|--cuda-arch) return ;;
      esac ;;
    tokenize)
      flags="-h --help --version -c --config --text --special --no-special --decode --model --json -q --quiet"
      case "$prev" in
        -c|--config|--model) _wick_files; return ;;
        --text) return ;;
      esac ;;
    template)
      flags="-h --help --version -c --config --messages --template --add-generation-prompt --tools --bos --eos --date --chat-template-config --model --json"
      case "$prev" in
        -c|--config|--messages|--template|--tools|--model) _wick_files; return ;;
        --bos|--eos|--date|--chat-template-config) return ;;
      esac ;;
    devices)
      flags="-h --help --version -c --config --json -q --quiet"
      case "$prev" in
        -c|--config) _wick_files; return ;;
      esac ;;
  esac
  COMPREPLY=($(compgen -W "$flags" -- "$cur"))
}
complete -o filenames -F _wick wick
