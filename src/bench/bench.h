// SPDX-License-Identifier: Apache-2.0
// wick bench: the tables that show how fast a device trains and runs a model.
//
// Every case runs what a user's run would: the trainer's programs, the decoder over its KV cache,
// the plan's ops. Token ids are random: id p of row r in batch b is
// mix_key(mix_key(seed, b), r * (seq + 1) + p) % vocab.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/result.h"
#include "bench/stats.h"
#include "wick/model.h"

namespace wick {

struct BenchOptions {
  std::vector<std::string> tables = {"train", "prefill",
                                     "decode"};  // names of bench_tables(), or all
  int64_t batch_size = 1, seq = 512;
  int64_t rank = 8;
  int64_t adapters = 1;  // of the training row: the batch's rows are shared out among them
  std::vector<std::string> targets = {"q_proj", "v_proj"};
  int64_t prompt = 128, new_tokens = 100;  // of decoding
  Effort effort;
  bool losses = false;       // the training row has the losses of its first ten steps
  bool profile = false;      // also where the time goes
  std::string save_adapter;  // not empty: the training case's start values as a PEFT folder
  std::string save_model;    // not empty: the weights and config.json as a folder, for peers
  uint64_t seed = 0;
};

struct BenchTable {
  const char* name;
  const char* what;  // for people
};
// Those that can be asked for, and at the end "profile", whose rows come with --profile.
const std::vector<BenchTable>& bench_tables();

BenchMachine bench_machine(const Model& model);

// Runs the tables, in the order of bench_tables(), and gives each row as it is measured. Throws:
// kInvalidArgument for sizes that the model has no room for; what loading the weights throws.
using OnResult = std::function<void(const BenchResult&)>;
void run_bench(Model& model, const BenchMachine& machine, const BenchOptions& options,
               const OnResult& on_result);

}  // namespace wick
