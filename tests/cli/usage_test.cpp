// SPDX-License-Identifier: Apache-2.0
// Wrong use and help: exit codes, one line that says what is wrong, nearest names.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "cli/cli.h"

namespace wick::test {
namespace {

// One line on standard error that begins with `who`, nothing on standard output.
void expect_refused(const CliResult& r, int code, const std::string& who,
                    const std::vector<std::string>& parts) {
  EXPECT_EQ(r.code, code) << r.out << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(r.err.starts_with(who + ": ")) << r.err;
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  for (const auto& part : parts) EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

TEST(Usage, VersionAndHelp) {
  EXPECT_EQ(wick({"--version"}).code, 0);
  EXPECT_TRUE(wick({"--version"}).out.starts_with("wick "));
  EXPECT_EQ(wick({"train", "--version"}).out, wick({"--version"}).out);
  CliResult help = wick({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  for (const char* verb : {"train", "generate", "chat", "eval", "merge", "data", "plan", "tokenize",
                           "template", "devices", "bench"}) {
    EXPECT_NE(help.out.find(std::string("  ") + verb), std::string::npos) << verb;
    CliResult r = wick({verb, "--help"});
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(r.err, "");
    EXPECT_NE(r.out.find("Examples:"), std::string::npos) << verb;
    EXPECT_NE(r.out.find("--json"), std::string::npos) << verb;
    EXPECT_EQ(wick({"help", verb}).out, r.out);
    size_t begin = 0;
    while (begin < r.out.size()) {
      size_t end = r.out.find('\n', begin);
      EXPECT_LE(end - begin, 110u) << r.out.substr(begin, end - begin);
      begin = end + 1;
    }
  }
  CliResult train = wick({"train", "--help"});
  EXPECT_NE(train.out.find("[0.0001]"), std::string::npos) << train.out;
  EXPECT_NE(train.out.find("--no-shuffle"), std::string::npos);
}

// A variable of the shell without a value must not train another model than was meant.
TEST(Usage, EmptyPaths) {
  expect_refused(wick({"train", "--data", ""}), 2, "wick train",
                 {"--data is empty, wanted PATH[:WEIGHT]"});
  expect_refused(wick({"train", "--data", "data", "--model", ""}), 2, "wick train",
                 {"--model is empty, wanted FOLDER", "leave --model out for the small model"});
  expect_refused(wick({"generate", "--prompt", "x", "--config="}), 2, "wick generate",
                 {"--config is empty, wanted FILE"});
}

TEST(Usage, WithoutVerb) {
  CliResult r = wick({});
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("Usage: wick VERB"), std::string::npos);
  expect_refused(wick({"trian"}), 2, "wick", {"unknown verb \"trian\"", "did you mean train?"});
  expect_refused(wick({"--json"}), 2, "wick", {"--json"});
}

TEST(Usage, UnknownFlags) {
  expect_refused(wick({"train", "--rnak", "3"}), 2, "wick train",
                 {"unknown flag --rnak", "did you mean --rank?"});
  expect_refused(wick({"train", "--lerning-rate=3"}), 2, "wick train",
                 {"did you mean --learning-rate?"});
  // Flags of other verbs too: a spelling is nearer than a verb.
  for (const char* flag : {"--batch_size", "--learning_rate=1", "--lora_rank"})
    expect_refused(wick({"train", flag, "3"}), 2, "wick train", {"did you mean --"});
  expect_refused(wick({"generate", "--max_tokens", "3"}), 2, "wick generate",
                 {"did you mean --max-tokens?"});
  expect_refused(wick({"eval", "--temp", "1"}), 2, "wick eval",
                 {"--temp", "belongs to wick generate"});
  expect_refused(wick({"generate", "-Z"}), 2, "wick generate", {"unknown flag -Z"});
  expect_refused(wick({"train", "extra"}), 2, "wick train", {"unexpected argument \"extra\""});
}

TEST(Usage, WrongValues) {
  expect_refused(wick({"train", "--rank", "abc"}), 2, "wick train",
                 {"--rank got \"abc\", wanted a whole number"});
  expect_refused(wick({"train", "--rank", "0"}), 2, "wick train", {"--rank got 0", "at least 1"});
  expect_refused(wick({"train", "--rank", "2.5"}), 2, "wick train", {"whole number"});
  expect_refused(wick({"eval", "--data", "x", "--limit", "0"}), 2, "wick eval",
                 {"--max-rows (--limit) got 0"});
  expect_refused(wick({"train", "--learning-rate", "fast"}), 2, "wick train", {"wanted a number"});
  expect_refused(wick({"train", "--learning-rate", "nan"}), 2, "wick train", {"wanted a number"});
  expect_refused(wick({"train", "--memory", "4XB"}), 2, "wick train", {"4XB", "4GB"});
  expect_refused(wick({"train", "--lr-schedule", "cosin"}), 2, "wick train",
                 {"did you mean cosine?"});
  expect_refused(wick({"generate", "--prompt"}), 2, "wick generate", {"--prompt needs a value"});
  expect_refused(wick({"generate", "--prompt", "--json"}), 2, "wick generate",
                 {"--prompt needs a value", "got the flag --json"});
  expect_refused(wick({"generate", "-p", "x", "--top-p", "0"}), 2, "wick generate",
                 {"--top-p got 0, wanted above 0"});
  expect_refused(wick({"generate", "-p", "x", "--top-p", "1.5"}), 2, "wick generate",
                 {"at most 1"});
  expect_refused(wick({"generate", "-p", "x", "--logit-bias", "3"}), 2, "wick generate",
                 {"wanted ID=X"});
  expect_refused(wick({"generate", "-p", "x", "--chat-template-config", "[1]"}), 2, "wick generate",
                 {"--chat-template-config", "JSON object"});
  expect_refused(wick({"completions", "fish"}), 2, "wick completions", {"bash, zsh"});
}

TEST(Usage, RanksThatNoWeightHas) {
  for (const char* rank : {"1048577", "9000000000000000000", "288230376151711744"}) {
    const CliResult r = wick({"plan", "--rank-pattern", cat("q_proj=", rank)});
    EXPECT_EQ(r.code, 1) << r.out << r.err;
    EXPECT_NE(r.err.find("wanted 1 to 1048576"), std::string::npos) << r.err;
  }
}

TEST(Usage, AdaptersInTheLayoutOfMlxLm) {
  const TempFolder folder;
  for (const char* name : {"adapters.safetensors", "0000100_adapters.safetensors"})
    expect_refused(wick({"generate", "--adapter-path", folder.write(name, ""), "--prompt", "x"}), 1,
                   "wick generate", {name, "an adapter in mlx-lm's layout"});
}

TEST(Usage, FlagsWithoutEffect) {
  auto refused = [](const std::vector<std::string>& words, const std::vector<std::string>& parts) {
    std::vector<std::string> all = {"train", "--data", "."};
    all.insert(all.end(), words.begin(), words.end());
    expect_refused(wick(all), 2, "wick train", parts);
  };
  refused({"--fine-tune-type", "full", "--targets", "q_proj"}, {"--targets", "lora, dora"});
  refused({"--fine-tune-type", "full", "--rank", "4"}, {"--rank"});
  refused({"--save-dtype", "bf16"}, {"--save-dtype", "--fine-tune-type lora", "full"});
  refused({"--beta", "0.5"}, {"--beta", "--loss sft", "dpo, simpo, orpo, kto"});
  refused({"--loss", "orpo", "--reference", "none"}, {"--reference", "dpo, kto"});
  refused({"--loss", "dpo", "--distill-alpha", "1"}, {"--distill-alpha", "distill"});
  refused({"--lr-schedule", "constant", "--lr-end", "1e-5"}, {"--lr-end", "constant"});
  refused({"--lr-cycles", "3"}, {"--lr-cycles", "cosine_with_restarts"});
  refused({"--optimizer", "lion", "--eps", "1e-6"}, {"--eps", "lion"});
  for (const char* flag : {"--nesterov", "--no-nesterov"})
    refused({"--optimizer", "lion", flag}, {"nesterov", "lion", "sgd, muon"});
}

// What transformers and PEFT call it, and what is near to it by its letters alone.
TEST(Usage, WordsOfOtherTrainers) {
  TempFolder folder;
  for (const auto& [theirs, ours] : {std::pair{"max_steps", "iters"},
                                     {"eval_steps", "steps_per_eval"},
                                     {"warmup_ratio", "warmup"},
                                     {"lora_r", "rank"},
                                     {"output_dir", "adapter_path"}}) {
    const std::string file = folder.write("k.yaml", std::string(theirs) + ": 1\n");
    expect_refused(wick({"train", "--data", ".", "-c", file}), 2, "wick train",
                   {cat("did you mean ", ours, "?")});
  }
  expect_refused(wick({"train", "--data", ".", "--save-steps", "1"}), 2, "wick train",
                 {"did you mean --save-every?"});
}

TEST(Usage, AKeyOfSettingsFilesIsNoFlag) {
  expect_refused(wick({"train", "--data", ".", "--lora-parameters", "x"}), 2, "wick train",
                 {"unknown flag --lora-parameters", "a key of settings files", "--config"});
}

TEST(Usage, ASweepContradictsNoFlag) {
  for (const auto& [axis, flag, value] : {std::tuple{"rank=4,8", "--rank", "16"},
                                          {"lr=1e-4,1e-3", "--learning-rate", "1e-5"},
                                          {"alpha=4,8", "--scale", "2"}})
    expect_refused(wick({"train", "--data", WICK_SOURCE_DIR, "--sweep", axis, flag, value}), 2,
                   "wick train", {std::string(flag) + " has no effect", "--sweep"});
  expect_refused(wick({"train", "--data", WICK_SOURCE_DIR, "--sweep-data", "a", "b"}), 2,
                 "wick train", {"--data has no effect", "--sweep-data"});
  // Blanks where commas were meant.
  const CliResult twice =
      wick({"train", "--data", WICK_SOURCE_DIR, "--sweep", "lr=1e-4", "lr=1e-3"});
  EXPECT_EQ(twice.code, 1);
  EXPECT_NE(twice.err.find("lr is given twice"), std::string::npos) << twice.err;
}

TEST(Usage, ASweepHasNoTest) {
  for (const char* sweep : {"--sweep", "--sweep-data"})
    expect_refused(wick({"train", "--data", ".", sweep, "lr=1e-4,2e-4", "--train", "--test"}), 2,
                   "wick train", {"--test", "wick eval"});
}

// Muon's is on by itself.
TEST(Usage, NesterovCanBeTurnedOff) {
  const CliResult r = wick({"plan", "--optimizer", "muon", "--no-nesterov", "--quiet"});
  EXPECT_EQ(r.code, 0) << r.err;
}

TEST(Usage, MissingFlags) {
  expect_refused(wick({"train"}), 2, "wick train", {"needs --data"});
  expect_refused(wick({"generate"}), 2, "wick generate", {"needs --prompt or --prompts"});
  expect_refused(wick({"merge", "--adapter-path", "a"}), 2, "wick merge", {"needs --save-path"});
  expect_refused(wick({"template"}), 2, "wick template", {"needs --messages"});
  expect_refused(wick({"tokenize", "hello"}), 2, "wick tokenize", {"--text"});
}

TEST(Usage, WhatPeersHaveAndWickDoesNot) {
  const std::pair<const char*, const char*> kOptimizers[] = {
      {"adamw8bit", "adamw_8bit"},        {"adamw_bnb_8bit", "adamw_8bit"},
      {"paged_adamw_8bit", "adamw_8bit"}, {"adamw_hf", "adamw"},
      {"adamw_torch_fused", "adamw"},     {"paged_lion_32bit", "lion"}};
  for (const auto& [theirs, ours] : kOptimizers)
    expect_refused(wick({"train", "--optimizer", theirs}), 2, "wick train",
                   {cat("did you mean ", ours, "?")});
  expect_refused(wick({"train", "--report-to", "wandb"}), 2, "wick train",
                 {"--report-to", "report.html", "--json"});
  expect_refused(wick({"train", "--trust-remote-code"}), 2, "wick train",
                 {"--trust-remote-code", "no code"});
  expect_refused(wick({"train", "--data", "mlx-community/WikiSQL"}), 1, "wick train",
                 {"mlx-community/WikiSQL", "hub", "JSON lines"});
  expect_refused(wick({"train", "--data", "/no/such/folder"}), 1, "wick train",
                 {"/no/such/folder", "no such file"});
}

TEST(Usage, AFullDiskIsAFailure) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  int status = std::system(WICK_BINARY " --help > /dev/full 2> /dev/null");
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

class Config : public testing::Test {
 protected:
  // `--data` names nothing, so a good file ends at that, with exit code 1.
  CliResult train(const std::string& yaml, std::vector<std::string> more = {}) {
    std::string file = folder_.write("settings.yaml", yaml);
    more.insert(more.begin(), {"train", "--config", file, "--data", "/no/such/folder"});
    return wick(more);
  }
  void expect_good(const std::string& yaml) {
    CliResult r = train(yaml);
    EXPECT_EQ(r.code, 1) << r.err;
    EXPECT_NE(r.err.find("no such file or folder"), std::string::npos) << r.err;
  }
  TempFolder folder_;
};

TEST_F(Config, KeysOfMlxLm) {
  expect_good(
      "model: some/model\ntrain: true\nfine_tune_type: lora\noptimizer: adamw\n"
      "optimizer_config:\n  adamw:\n    betas: [0.9, 0.98]\n    eps: 1e-6\n    bias_correction: "
      "true\n"
      "  sgd: {}\n"
      "seed: 0\nnum_layers: 16\nbatch_size: 4\niters: 1000\nval_batches: 25\nlearning_rate: 1e-5\n"
      "report_to: null\nproject_name: null\nsteps_per_report: 10\nsteps_per_eval: 200\n"
      "grad_accumulation_steps: 1\nresume_adapter_file: null\nadapter_path: adapters\n"
      "save_every: 100\ntest: false\ntest_batches: 100\nmax_seq_length: 2048\n"
      "grad_checkpoint: false\nclear_cache_threshold: 0\ntrust_remote_code: false\n"
      "lora_parameters:\n  keys: [\"self_attn.q_proj\", \"self_attn.v_proj\"]\n  rank: 8\n"
      "  scale: 20.0\n  dropout: 0.0\n"
      "lr_schedule:\n  name: cosine_decay\n  warmup: 100\n  warmup_init: 1e-7\n"
      "  arguments: [1e-5, 1000, 1e-7]\n");
  expect_good("");
  expect_good("lr_schedule: linear\nlora_parameters:\n");
}

TEST_F(Config, WrongKeysAndKinds) {
  expect_refused(train("rnak: 8\n"), 2, "wick train", {"rnak", "did you mean rank?"});
  expect_refused(train("rank: abc\n"), 2, "wick train",
                 {"rank", "a string", "\"abc\"", "whole number"});
  expect_refused(train("rank: [8]\n"), 2, "wick train", {"rank", "wanted a whole number"});
  expect_refused(train("shuffle: 1\n"), 2, "wick train", {"shuffle", "wanted true or false"});
  expect_refused(train("learning_rate: high\n"), 2, "wick train", {"learning_rate", "a number"});
  expect_refused(train("rank: 8\nlora_parameters: {rank: 4}\n"), 2, "wick train",
                 {"lora_parameters.rank", "second time"});
  expect_refused(train("lora_parameters: {rnk: 4}\n"), 2, "wick train",
                 {"lora_parameters.rnk", "did you mean rank?"});
  expect_refused(train("lora_parameters: 4\n"), 2, "wick train", {"lora_parameters", "a mapping"});
  expect_refused(train("lr_schedule: {name: stairs, arguments: [1, 2, 3]}\n"), 2, "wick train",
                 {"lr_schedule.name", "stairs", "cosine_decay"});
  expect_refused(train("lr_schedule: {name: cosine_decay}\n"), 2, "wick train", {"arguments"});
  expect_refused(train("lr_schedule: {arguments: [1]}\n"), 2, "wick train", {"no name"});
  expect_refused(train("report_to: wandb\n"), 2, "wick train", {"report_to", "report.html"});
  expect_refused(train("hf_dataset: {path: x}\n"), 2, "wick train", {"hf_dataset", "hub"});
  expect_refused(train("trust_remote_code: true\n"), 2, "wick train", {"trust_remote_code"});
  expect_refused(train("- rank\n"), 2, "wick train", {"a mapping"});
  expect_refused(train("rank: 8\n  alpha: 3\n"), 1, "wick train", {"settings.yaml:2"});
  expect_refused(wick({"train", "--config", folder_.path("none.yaml")}), 1, "wick train",
                 {"none.yaml"});
}

TEST_F(Config, AFileOfAnotherVerbServesToo) {
  std::string file = folder_.write("train.yaml", "rank: 8\nlora_parameters: {alpha: 3}\n");
  CliResult r = wick({"eval", "--config", file, "--data", "/no/such/folder"});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("not used by wick eval: rank, lora_parameters"), std::string::npos) << r.err;
}

// Completions, man page and reference are made from the tables of options; those in the tree are
// what the binary makes.
TEST(Reference, InTheTreeIsWhatTheBinaryMakes) {
  std::string root = WICK_SOURCE_DIR;
  const std::pair<const char*, const char*> kFiles[] = {{"bash", "/completions/wick.bash"},
                                                        {"zsh", "/completions/_wick"},
                                                        {"man", "/docs/man/wick.1"},
                                                        {"markdown", "/docs/commands.md"}};
  for (const auto& [what, file] : kFiles) {
    CliResult r = wick({"completions", what});
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(r.out, contents(root + file))
        << "make it anew: build/wick completions " << what << " > " << (file + 1);
  }
}

TEST(Reference, BashCompletesAPathWithBlanks) {
  TempFolder folder;
  folder.write("my models/config.json", "{}");
  const std::string script = folder.write(
      "try.sh",
      cat("source '", WICK_SOURCE_DIR, "/completions/wick.bash'\n",
          "COMP_WORDS=(wick train --model '", folder.path(), "/my'); COMP_CWORD=3; _wick\n",
          "printf '%s|' \"${COMPREPLY[@]}\" > '", folder.path("out"), "'\n"));
  if (std::system(cat("bash '", script, "'").c_str()) != 0) GTEST_SKIP() << "no bash";
  EXPECT_EQ(contents(folder.path("out")), folder.path("my models") + "|");
}

TEST(Reference, TheManPageIsAscii) {
  const CliResult r = wick({"completions", "man"});
  EXPECT_TRUE(std::all_of(r.out.begin(), r.out.end(), [](char c) { return c > 0; }));
}

}  // namespace
}  // namespace wick::test
