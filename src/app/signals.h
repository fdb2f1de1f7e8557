// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, SIGTERM and SIGHUP as a question that work asks between its steps. A second signal that
// arrives half a second later, before the first was taken, ends the process at once, with exit code
// 1: nothing was saved.
#pragma once

namespace wick {

// While one is alive, SIGINT (and SIGTERM and SIGHUP where `terminate`) only sets a mark; SIGHUP
// not where it is ignored already (nohup). One at a time.
class StopSignal {
 public:
  explicit StopSignal(bool terminate = true);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // From now on a reader of the output that has gone away (SIGPIPE, unless it is ignored) asks too,
  // instead of ending the process: for work that is worth saving.
  void heed_closed_pipe();

  bool asked() const;
  void clear();
};

}  // namespace wick
