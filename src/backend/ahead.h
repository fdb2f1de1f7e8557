// SPDX-License-Identifier: Apache-2.0
// Programs of a back end that runs ahead of the host (Backend::runs_ahead): what a host asks that
// does not wait for all it started. Runs of all programs of a back end are done in the order in
// which they were started.
#pragma once

#include "backend/backend.h"

namespace wick {

class AheadProgram {
 public:
  // So many runs keep feeds and results of their own. A run may be fed while the one before it is
  // under way; its results stay until that many more were started.
  static constexpr size_t kRuns = 2;

  virtual ~AheadProgram() = default;
  // Program::wait() of the oldest run that was not waited for, whose results read() then gives.
  virtual void wait_oldest() = 0;
};

// The same of any program: one that does not run ahead is done already.
inline void wait_oldest(Program& program) {
  if (auto* ahead = dynamic_cast<AheadProgram*>(&program))
    ahead->wait_oldest();
  else
    program.wait();
}

}  // namespace wick
