// SPDX-License-Identifier: Apache-2.0
// sample: what decides the next token.
#include <cmath>

#include "backend/place.h"
#include "backend/ref/scalar.h"

namespace wick::ref {

template <class S>
void sample_fwd(const StepArgs& args) {
  In<S> logits(args.in[0]);  // [B, V]
  const Operand &token = args.out[0], &place = args.out[1], &log = args.out[2];
  for (int64_t b = 0; b < logits.rows; ++b) {
    int32_t best = -1;
    double most = -INFINITY;
    for (int64_t v = 0; v < logits.cols; ++v) {
      const double x = real_part(logits(b, v));
      if (!(x > most)) continue;
      most = x;
      best = static_cast<int32_t>(v);
    }
    if (args.in[1]) {
      std::vector<float> row;
      for (int64_t v = 0; v < logits.cols; ++v)
        row.push_back(static_cast<float>(real_part(logits(b, v))));
      best = draw_token(row, how_of(args.in[1], place, b));
    }
    token.as<int32_t>()[b] = best;
    if (place) take_place(place, log, b, best);
  }
}

WICK_REF_KERNEL(sample_fwd);

}  // namespace wick::ref
