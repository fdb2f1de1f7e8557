// SPDX-License-Identifier: Apache-2.0
// Every option of mlx-lm's `lora` command and every key of its settings file: taken under its own
// name with its meaning, or refused with what to use instead.
#include <gtest/gtest.h>

#include "cli/cli.h"

namespace wick::test {
namespace {

struct Word {
  std::string name, value;  // of the command line; "" without one
  std::string refusal;      // "": taken
};

const Word kFlags[] = {
    {"--model", "some/model", ""},
    {"--train", "", ""},
    {"--no-train", "", "nothing to do"},
    {"--test", "", ""},
    {"--fine-tune-type", "lora", ""},
    {"--fine-tune-type", "full", ""},
    {"--optimizer", "adam", ""},
    {"--optimizer", "adamw", ""},
    {"--optimizer", "muon", ""},
    {"--optimizer", "sgd", ""},
    {"--optimizer", "adafactor", ""},
    {"--mask-prompt", "", ""},
    {"--num-layers", "16", ""},
    {"--num-layers", "-1", ""},
    {"--num-layers", "0", ""},
    {"--batch-size", "4", ""},
    {"--iters", "1000", ""},
    {"--val-batches", "25", ""},
    {"--val-batches", "-1", ""},
    {"--learning-rate", "1e-5", ""},
    {"--steps-per-report", "10", ""},
    {"--steps-per-eval", "200", ""},
    {"--grad-accumulation-steps", "1", ""},
    {"--resume-adapter-file", "adapters", ""},
    {"--adapter-path", "adapters", ""},
    {"--save-every", "100", ""},
    {"--test-batches", "500", ""},
    {"--max-seq-length", "2048", ""},
    {"--grad-checkpoint", "", ""},
    {"--clear-cache-threshold", "0", ""},
    {"--seed", "0", ""},
    {"-c", "", ""},  // with the settings file below
    {"--report-to", "wandb", "report.html"},
    {"--project-name", "x", "report.html"},
    {"--trust-remote-code", "", "no code"},
};

struct Key {
  std::string yaml, refusal;
};

const Key kKeys[] = {
    {"model: some/model", ""},
    {"train: true", ""},
    {"train: yes", ""},
    {"mask_prompt: Off", ""},
    {"train: false", "nothing to do"},
    {"train: false\ntest: false", "nothing to do"},
    {"test: true", ""},
    {"fine_tune_type: full", ""},
    {"optimizer: muon", ""},
    {"optimizer: AdamW", ""},
    {"optimizer: Adamm", "did you mean adam"},
    {"config: lora.yaml", ""},
    {"iters: 1_000\nlearning_rate: 1_0.5e-5", ""},
    {"iters: 1__0", "a whole number"},
    {"one: &a {rank: 4}\nlora_parameters: {<<: *a, dropout: 0.0}", "one"},
    {"lora_parameters: {<<: {rank: 8, dropout: 0.1}, rank: 4, scale: 2}", ""},
    {"lora_parameters: {<<: {rnak: 8}}", "rnak"},
    {"mask_prompt: true", ""},
    {"num_layers: 16", ""},
    {"batch_size: 4", ""},
    {"iters: 1000", ""},
    {"val_batches: -1", ""},
    {"learning_rate: 1e-5", ""},
    {"steps_per_report: 10", ""},
    {"steps_per_eval: 200", ""},
    {"grad_accumulation_steps: 2", ""},
    {"resume_adapter_file: null", ""},
    {"adapter_path: adapters", ""},
    {"save_every: 100", ""},
    {"test_batches: 100", ""},
    {"max_seq_length: 2048", ""},
    {"grad_checkpoint: true", ""},
    {"clear_cache_threshold: 0", ""},
    {"seed: 0", ""},
    {"prompt_feature: q", ""},
    {"completion_feature: a", ""},
    {"text_feature: t", ""},
    {"chat_feature: c", ""},
    {"lora_parameters: {rank: 8, dropout: 0.0, scale: 20.0, keys: [self_attn.q_proj]}", ""},
    {"lora_parameters: {rank: 8, alpha: 16, dropout: 0.0, scale: 10.0}", ""},
    {"optimizer: adam\noptimizer_config: {adam: {betas: [0.9, 0.98], eps: 1e-6, "
     "bias_correction: false}}",
     ""},
    {"optimizer: adamw\noptimizer_config: {adamw: {betas: [0.9, 0.98], weight_decay: 0.1}, "
     "sgd: {}}",
     ""},
    {"optimizer: adamw\noptimizer_config: {adamw: , adam: }", ""},
    {"optimizer: sgd\noptimizer_config: {sgd: {momentum: 0.9, weight_decay: 0.1, dampening: 0.0, "
     "nesterov: true}}",
     ""},
    {"optimizer: muon\noptimizer_config: {muon: {momentum: 0.9, weight_decay: 0.1, nesterov: "
     "false, ns_steps: 5}}",
     ""},
    {"optimizer: adafactor\noptimizer_config: {adafactor: {eps: [1e-30, 1e-3], clip_threshold: "
     "1.0, decay_rate: -0.8, beta_1: null, weight_decay: 0.0, scale_parameter: true, "
     "relative_step: true, warmup_init: false}}",
     ""},
    {"lr_schedule: {name: cosine_decay, arguments: [1e-5, 1000], warmup: 100, warmup_init: 1e-7}",
     ""},
    {"lr_schedule: {name: linear_schedule, arguments: [1e-5, 0.0, 1000]}", ""},
    {"lr_schedule: {name: exponential_decay, arguments: [1e-5, 0.99]}", ""},
    {"lr_schedule: {name: step_decay, arguments: [1e-5, 0.9, 100]}", ""},
    {"report_to: null", ""},
    {"project_name: null", ""},
    {"trust_remote_code: false", ""},
    {"report_to: wandb", "report.html"},
    {"report_to: swanlab", "report.html"},
    {"project_name: x", "report.html"},
    {"trust_remote_code: true", "no code"},
    {"hf_dataset: {path: x}", "JSON lines"},
    {"optimizer: adafactor\noptimizer_config: {adafactor: {beta_1: 0.9}}", "no first moment"},
    {"optimizer: sgd\noptimizer_config: {sgd: {betas: [0.9, 0.9]}}", "betas"},
    {"optimizer: adamw\noptimizer_config: {adamw: {weight_decay: -3}}", "at least 0"},
    {"optimizer: adamw\noptimizer_config: {adamw: {betas: [0.9, -0.5]}}", "at least 0"},
    {"optimizer: muon\noptimizer_config: {muon: {momentum: -1}}", "at least 0"},
    {"lr_schedule: {arguments: [1e-5, 10]}", "no name"},
    {"lr_schedule: {name: cosine_decay}", "no arguments"},
    {"lr_schedule: {name: step_decay, arguments: [1e-5]}", "updates of a step"},
    {"lr_schedule: {name: polynomial, arguments: [1e-5]}", "cosine_decay"},
    {"lr_schedule: {name: cosine_decay, arguments: [1e-5, 10]}\nlearning_rate: quick",
     "learning_rate"},
    {"learning_rate: quick\nlr_schedule: {name: cosine_decay, arguments: [1e-5, 10]}",
     "learning_rate"},
    {"lr_schedule: {name: cosine_decay, arguments: [1e-5, 10]}\nlearning_rate: 1000", "at most 10"},
    {"learning_rate: -1\nlr_schedule: {name: cosine_decay, arguments: [1e-5, 10]}", "at least 0"},
    {"lr_schedule: {name: cosine_decay, arguments: [1000, 10]}", "at most 10"},
    {"lr_schedule: {name: linear_schedule, arguments: [1e-5, 1000, 10]}", "at most 10"},
};

class MlxOptions : public testing::Test {
 protected:
  // `--data` names nothing, so what is taken ends at that, with exit code 1.
  void check(std::vector<std::string> words, const std::string& what, const std::string& refusal) {
    words.insert(words.begin(), "train");
    words.insert(words.end(), {"--data", "/no/such/folder"});
    const CliResult r = wick(words);
    EXPECT_EQ(r.code, refusal.empty() ? 1 : 2) << what << "\n" << r.err;
    EXPECT_NE(r.err.find(refusal.empty() ? "no such file or folder" : refusal), std::string::npos)
        << what << "\n"
        << r.err;
  }
  TempFolder folder_;
};

TEST_F(MlxOptions, Flags) {
  for (const Word& w : kFlags) {
    std::vector<std::string> words = {w.name};
    if (w.name == "-c") words.push_back(folder_.write("settings.yaml", "seed: 1\n"));
    if (!w.value.empty()) words.push_back(w.value);
    check(words, w.name + " " + w.value, w.refusal);
  }
}

TEST_F(MlxOptions, Keys) {
  for (const Key& k : kKeys) {
    const std::string file = folder_.write("settings.yaml", k.yaml + "\n");
    check({"--config", file}, k.yaml, k.refusal);
  }
}

}  // namespace
}  // namespace wick::test
