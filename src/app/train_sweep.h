// SPDX-License-Identifier: Apache-2.0
// wick train --sweep: several adapters at once, and the table that ranks them.
#pragma once

#include <string>

#include "app/train_flags.h"
#include "app/train_view.h"

namespace wick {

// Trains the adapters, whose folders are in `folder`. The exit code. `resume_command` goes on with
// a sweep that was stopped.
int run_sweep(const std::vector<SweepAdapter>& adapters, const std::string& folder, Model& model,
              Output& out, const std::string& resume_command);

}  // namespace wick
