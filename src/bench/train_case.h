// SPDX-License-Identifier: Apache-2.0
// A training run without a data set: the trainer's own step over random rows, every token of which
// is trained, with an adapter whose B is not zero.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "bench/context.h"
#include "train/step.h"

namespace wick {

struct TrainCaseOptions {
  int64_t batch_size = 1, seq = 512;
  int64_t rank = 8;
  std::vector<std::string> targets;
  uint64_t seed = 0;
  int64_t adapters = 1;      // at once, each with its share of the batch
  int64_t num_layers = -1;   // adapters in the last N blocks; -1: all
  double trained = 1;        // share of a row's tokens, at its end
  bool keep_prefix = false;  // the same batch each time, its frozen blocks' outputs kept
};

class TrainCase {
 public:
  // `config` may have fewer layers than the weights.
  TrainCase(Backend& backend, const ModelConfig& config, ModelWeights& weights,
            const TrainCaseOptions& options);
  TrainCase(const TrainCase&) = delete;
  TrainCase& operator=(const TrainCase&) = delete;

  // Reads the weights and allocates.
  void compile();
  // Ends one update over a batch that no step before had (but with keep_prefix); the mean loss of
  // its tokens. As in a run, the next one is made and started before, where the device runs ahead:
  // what passes from one end to the next is what an update takes.
  double run();
  // The same with nothing under way before or after.
  double run_alone();
  // The packs of the next batch, as run() would make them.
  std::vector<Pack> next_packs();

  TrainStep& step() { return *step_; }
  const Adapter& adapter() const { return adapters_.front(); }
  const std::vector<float>& start_params() const { return start_; }
  int64_t packs_per_step() const { return packs_per_step_; }
  int64_t tokens() const { return options_.batch_size * options_.seq; }  // of a batch
  // Of an update: all have rows of the same length. Requires one that was started.
  double gflop() const { return gflop_; }

 private:
  ExampleSet batch(int64_t index) const;
  void start();
  double finish();

  Backend& backend_;
  ModelConfig config_;
  ModelWeights& weights_;
  TrainCaseOptions options_;
  std::vector<Adapter> adapters_;  // all alike
  std::vector<float> start_;
  std::unique_ptr<TrainStep> step_;
  int64_t packs_per_step_ = 0, next_ = 0;
  double gflop_ = 0;
  std::deque<std::vector<Pack>> started_;
};

}  // namespace wick
