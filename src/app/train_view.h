// SPDX-License-Identifier: Apache-2.0
// What a training run looks like: the forecast, the live line or plain lines, JSON events, and the
// curve at the end.
#pragma once

#include <string>

#include "app/terminal.h"
#include "wick/wick.h"

namespace wick {

Json forecast_json(const Forecast& forecast);
// The share of token slots that is used, beside what padding would use.
std::string packing_text(const Forecast& forecast);
// A small table for people.
std::string forecast_table(const Forecast& forecast);

class TrainView {
 public:
  explicit TrainView(Output& out) : out_(out) {}

  void forecast(const Forecast& forecast);
  void progress(const StepReport& report);  // after every update: the live line
  void step(const StepReport& report);      // a report: a plain line, an event
  void eval(const EvalReport& report);
  void saved(const SaveReport& report);
  void message(const std::string& line);
  // The curve, losses, samples and where things are.
  void finish(const TrainResult& result);

 private:
  Output& out_;
  double last_eval_ = 0;
};

}  // namespace wick
