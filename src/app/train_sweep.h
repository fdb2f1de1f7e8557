// SPDX-License-Identifier: Apache-2.0
// wick train --sweep: several adapters at once, and the table that ranks them.
#pragma once

#include <string>

#include "app/train_flags.h"
#include "app/train_view.h"

namespace wick {

// The exit code. `resume_command` goes on with a sweep that was stopped.
int run_sweep(const TrainFlags& flags, const TrainOptions& options, Model& model, Output& out,
              const std::string& resume_command);

}  // namespace wick
