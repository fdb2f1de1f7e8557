#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does `wick train --loss dpo|simpo|orpo|kto` follow TRL's own trainers, step by step?

    python tools/peers/check_trl.py WICK MODEL [--tolerance 1e-5] [--only dpo,kto]

Ten AdamW updates in f32 on MODEL, from one adapter with B ≠ 0, over pairs of chats of different
lengths, all of them in every update; prints both losses of each step and the largest relative
difference, exit code 1 above the tolerance. Needs the packages of
tools/peers/requirements.txt.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

import datasets
import peft
import torch
import transformers
import trl

STEPS, LEARNING_RATE, LENGTH = 10, 2e-3, 512
# Ends with the answer: TRL also trains what a template writes after it, wick only what the model is
# to say.
TEMPLATE = ("{% for m in messages %}{% if not loop.first %}\n{% endif %}<|im_start|>{{ m.role }}\n"
            "{{ m.content }}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}")
WORDS = "one two three four five six seven eight nine ten".split()


def rows():
    def text(first, count):
        return " ".join(WORDS[(first + 3 * i) % len(WORDS)] for i in range(count))

    made = []
    for i in range(6):
        made.append({
            "prompt": [{"role": "user", "content": f"Say {text(i, 2 + i % 3)}."}],
            "chosen": [{"role": "assistant", "content": text(i + 1, 3 + i)}],
            "rejected": [{"role": "assistant", "content": text(i + 5, 9 - i)}]})
    return made


def unpaired(pairs):
    """KTO's rows: all chosen answers, then all rejected ones."""
    answers = [(r["prompt"], r["chosen"], True) for r in pairs]
    answers += [(r["prompt"], r["rejected"], False) for r in pairs]
    return [dict(prompt=p, completion=c, label=label) for p, c, label in answers]


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")


def copy_model(model, folder):
    shutil.copytree(model, folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    return folder


def make_adapter(model, folder):
    torch.manual_seed(5)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"],
                             task_type="CAUSAL_LM")
    made = peft.get_peft_model(load(model), config)
    for name, p in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.02)
    made.save_pretrained(folder)


class InOrder:
    """Rows stay as they are: KTO pairs each prompt with the answer of the row before it."""

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer_of(loss):
    if loss == "dpo":
        return trl.DPOTrainer, trl.DPOConfig, dict(beta=0.3, max_length=LENGTH)
    if loss == "kto":
        return trl.KTOTrainer, trl.KTOConfig, dict(
            beta=0.3, desirable_weight=1.3, undesirable_weight=0.8, max_length=LENGTH)
    if loss == "simpo":
        from trl.experimental.cpo import CPOConfig, CPOTrainer
        return CPOTrainer, CPOConfig, dict(
            loss_type="simpo", beta=2.0, simpo_gamma=0.5, cpo_alpha=0.0, max_length=LENGTH)
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer
    return ORPOTrainer, ORPOConfig, dict(beta=0.25, max_length=LENGTH)


WICK = {"dpo": ["--beta", "0.3"],
        "simpo": ["--beta", "2", "--simpo-gamma", "0.5"],
        "orpo": ["--beta", "0.25"],
        "kto": ["--beta", "0.3", "--desirable-weight", "1.3", "--undesirable-weight", "0.8"]}


def losses_of_trl(loss, model, adapter, pairs, folder):
    kind, config, settings = trainer_of(loss)
    data = unpaired(pairs) if loss == "kto" else pairs
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    policy = peft.PeftModel.from_pretrained(load(model), adapter, is_trainable=True)
    args = config(
        output_dir=str(folder / f"trl-{loss}"), per_device_train_batch_size=len(data),
        max_steps=STEPS, learning_rate=LEARNING_RATE, lr_scheduler_type="constant", warmup_steps=0,
        weight_decay=0.0, max_grad_norm=1.0, adam_beta2=0.999, logging_steps=1, report_to=[],
        save_strategy="no", use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False,
        disable_tqdm=True, log_level="error", seed=1, optim="adamw_torch", **settings)
    # Dropout of the base and the adapter is off in both.
    trainer = type("Ordered", (InOrder, kind), {})(
        model=policy, args=args, train_dataset=datasets.Dataset.from_list(data),
        processing_class=tokenizer)
    trainer.train()
    return [e["loss"] for e in trainer.state.log_history if "loss" in e]


def losses_of_wick(wick, loss, model, adapter, pairs, folder):
    data = folder / "data"
    data.mkdir(exist_ok=True)
    (data / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in pairs))
    out = folder / f"wick-{loss}"
    done = subprocess.run(
        [wick, "train", "--model", model, "--data", data, "--adapter-path", out, "--loss", loss,
         *WICK[loss], "--init-adapter", adapter, "--dtype", "f32", "--device", "cpu",
         "--batch-size", str(len(pairs)), "--iters", str(STEPS), "--learning-rate",
         str(LEARNING_RATE), "--lr-schedule", "constant", "--warmup", "0",
         "--weight-decay", "0", "--grad-clip", "1", "--steps-per-report", "1",
         "--max-seq-length", str(LENGTH), "--json"],
        text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"wick: {done.stderr.strip()}")
    events = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    return [e["loss"] for e in events if e.get("event") == "step"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wick", type=lambda path: Path(path).resolve())
    parser.add_argument("model", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--only", default="dpo,simpo,orpo,kto")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    pairs, worst = rows(), 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = copy_model(args.model, folder / "model")
        make_adapter(model, folder / "adapter")
        for loss in args.only.split(","):
            ours = losses_of_wick(args.wick, loss, model, folder / "adapter", pairs, folder)
            theirs = losses_of_trl(loss, model, folder / "adapter", pairs, folder)
            apart = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
            worst = max(worst, apart)
            print(f"{loss}: TRL {trl.__version__} {theirs[0]:.6f} … {theirs[-1]:.6f}, wick "
                  f"{ours[0]:.6f} … {ours[-1]:.6f}; largest difference {apart:.1e}", flush=True)
    return 0 if worst <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
