// SPDX-License-Identifier: Apache-2.0
// head with its second pair of factors: an adapter on the model's head.
#pragma once

#include "plan/recorder.h"

namespace wick {

// As Recorder::head, of the logits x wᵀ + h bᵀ: h [M, R], b [V, R].
ValueId head_with_pair(Recorder& r, ValueId x, ValueId w, ValueId targets, const HeadAttr& attr,
                       ValueId h, ValueId b);

// The log-probabilities of some rows into `logp`, a range of rows of a larger value; h and b may be
// kNone.
void head_into(Recorder& r, ValueId logp, ValueId x, ValueId w, ValueId targets,
               const HeadAttr& attr, ValueId h, ValueId b);

// As Recorder::kl_head, into `kl`, which may be a range of rows of a larger value.
struct KlHeads {
  ValueId x = kNone, w = kNone, teacher_x = kNone, teacher_w = kNone, targets = kNone;
  ValueId h = kNone, b = kNone;  // the student's second pair, if any
};
void kl_head_into(Recorder& r, ValueId kl, const KlHeads& of, const KlAttr& attr);

}  // namespace wick
