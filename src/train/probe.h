// SPDX-License-Identifier: Apache-2.0
// SpeedProbe: how long a plan will take, from a moment's work on this device.
//
// A training step of the same model cut to a few layers (two if it is large) and a part of its
// vocabulary, with random weights, is run step by step. Every kind of step (op, direction,
// kernel-relevant sizes) gets a rate: seconds per unit of its work. The time of the whole plan is
// the sum over its steps. Where even two layers take long, they are cut in width as well, and fewer
// tokens are run; the rates carry the difference.
#pragma once

#include <map>
#include <span>
#include <string>

#include "train/step.h"

namespace wick {

// Seconds per unit of work by kind of step, from steps that were timed.
class StepRates {
 public:
  // `attended`: rows that a token attends to, on average.
  void add(const Plan& plan, const Step& step, double attended, double seconds);
  // A factor on all of them: what the steps' own times leave out.
  void scale(double factor) { factor_ *= factor; }
  // Of one run of a plan. A kind that was not timed goes by those of other widths, these by their
  // op, an op by all of them.
  double seconds(const Plan& plan, double attended) const;

 private:
  struct Rate {
    double seconds = 0, units = 0;
  };
  std::map<std::string, Rate> rates_;
  Rate all_;
  double factor_ = 1;
};

// The mean of durations without those that something else on the machine made long: a run meets
// the common delays as often as they were met here, the rare ones seldom enough.
double steady_mean(std::span<const double> seconds);

class SpeedProbe {
 public:
  // What of a run matters to its speed.
  struct Case {
    PackLimits limits;
    double attended = 1;     // rows that a token attends to, on average
    bool recompute = false;  // of every block, so that both ways are timed
    double flops = 0;        // of one pack
    int64_t bytes = 0;       // without the weights
    float skip_below = 0;
    Op optimizer = Op::kAdamw;
    Hyper hyper = AdamwSettings().hyper();
    bool answers = false;  // tokens by themselves are to be timed too
  };

  // `weights` and `trainable` are asked for types and sizes only.
  SpeedProbe(Backend& backend, const ModelConfig& config, const ModelWeights& weights,
             const Trainable& trainable, const Case& run);

  // Of one run of a plan recorded from the same config.
  double seconds(const Plan& plan, double attended) const { return rates_.seconds(plan, attended); }
  // Of one update of that many trained numbers.
  double update_seconds(int64_t params) const { return static_cast<double>(params) * update_rate_; }
  // Of one token by itself through a model of that many bytes of weights, which it reads.
  double token_seconds(int64_t weight_bytes) const {
    return static_cast<double>(weight_bytes) * token_rate_;
  }
  // What the first pack takes more than others, since that many bytes are touched the first time.
  double cold_seconds(int64_t bytes) const { return static_cast<double>(bytes) * cold_rate_; }

 private:
  // `whole` has the layers and the vocabulary of the model that is run, and the width of the run's.
  void measure(Backend& backend, const ModelConfig& whole, const ModelWeights& weights,
               const Trainable& trainable, const Case& run, bool skips_rows);

  StepRates rates_;
  double update_rate_ = 0;  // seconds per trained number
  double cold_rate_ = 0;    // seconds per byte
  double token_rate_ = 0;   // seconds per byte of weights, of a token by itself
};

// Rows that a token of these packs attends to, on average.
double mean_attended(std::span<const Pack> packs);

}  // namespace wick
