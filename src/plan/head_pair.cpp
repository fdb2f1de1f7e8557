// SPDX-License-Identifier: Apache-2.0
#include "plan/head_pair.h"

namespace wick {

ValueId head_with_pair(Recorder& r, ValueId x, ValueId w, ValueId targets, const HeadAttr& attr,
                       ValueId h, ValueId b) {
  WICK_CHECK(r.shape(h)[1] == r.shape(b)[1] && r.shape(h)[0] == r.shape(x)[0] &&
                 r.shape(b)[0] == r.shape(w)[0],
             "head wants h [M, R], b [V, R], got ", r.shape(h).str(), " and ", r.shape(b).str());
  const ValueId logp = r.head(x, w, targets, attr);
  const Value of = r.plan().value(h);
  const ValueId slope = r.training() ? r.temp("head.dlogp_dh", of.shape, of.dtype) : kNone;
  Step& step = r.plan().steps.back();
  step.inputs.insert(step.inputs.end(), {h, b});
  step.outputs.push_back({slope});
  return logp;
}

}  // namespace wick
