// SPDX-License-Identifier: Apache-2.0
// attention forward for a few rows right behind the launch that writes the rows `new_rows` of k and
// v ([T], none where negative): other keys are read while that one still runs. So no launch of the
// same run before it may have written other rows of them, new_rows or where rows look.
#pragma once

#include "backend/cuda/queue.h"

namespace wick::cuda {

// False, with nothing enqueued, where the kernels with tensor cores do not serve.
bool attention_fwd_early(const StepArgs& args, const Operand& new_rows);

// attention_fwd_mma() (attention.h) with new_rows, or null: then it waits for its turn.
bool attention_fwd_mma(const StepArgs& args, const int32_t* new_rows);

}  // namespace wick::cuda
