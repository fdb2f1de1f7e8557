// SPDX-License-Identifier: Apache-2.0
// What a run tells other programs: the JSON of its events, and Watch, which writes them to a file
// of JSON lines and to TensorBoard, and calls a command at each look at the held-out rows.
#pragma once

#include <memory>
#include <optional>

#include "api/event_file.h"
#include "io/json.h"
#include "wick/trainer.h"

namespace wick {

Json step_event(const StepReport& report);
Json eval_event(const EvalReport& report);
Json save_event(const SaveReport& report);

// Refuses a folder, and a file of metrics that no run has written, such as the data: it would be
// replaced. Throws: kInvalidArgument.
void check_metrics(const std::string& path);

class Watch {
 public:
  // `behind`: the updates that a resumed run has behind it, 0 where it was killed before its first
  // checkpoint. Of an older file of metrics later lines are dropped, since they come again, and the
  // line of the save at that update is added where a kill came before it. `look_due`: the look at
  // that update comes again, too. Throws: kIo.
  Watch(const TrainOptions& options, std::optional<int64_t> behind, bool look_due = false);

  // The same callbacks, with the watching before each. The arguments must outlive the result.
  TrainCallbacks around(const TrainCallbacks& callbacks);

 private:
  void line(const Json& event);
  void add_rewards(const std::string& split, const PreferenceReport& preference,
                   std::vector<EventFile::Scalar>& scalars) const;
  void run_hook(const EvalReport& report, const TrainCallbacks& callbacks) const;

  const TrainOptions& options_;
  std::ofstream metrics_;
  std::unique_ptr<EventFile> board_;
};

// Runs `command` in a shell with `input` as its standard input; what it prints goes to standard
// error. "" when it returns 0, else what went wrong. Ends it and its children after `seconds`, and
// as soon as `should_stop`, asked all the while, says so.
std::string run_command(const std::string& command, const std::string& input, double seconds,
                        const std::function<bool()>& should_stop = {});

}  // namespace wick
