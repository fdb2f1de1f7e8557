// SPDX-License-Identifier: Apache-2.0
// embed, gather_rows, copy: ops that move rows.
#include "backend/ref/scalar.h"

namespace wick::ref {
namespace {

template <class S>
void clear_unless_accumulating(const Out<S>& out) {
  if (out.accumulates) return;
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.cols; ++c) out.at(r, c) = S(0);
  }
}

// dx[rows[m]] += dy[m] where rows[m] >= 0 and not `but`, in the order of m.
template <class S>
void scatter_add(const In<S>& dy, const Ints& rows, const Out<S>& dx, int64_t but = -1) {
  clear_unless_accumulating(dx);
  for (int64_t m = 0; m < dy.rows; ++m) {
    if (rows[m] < 0 || rows[m] == but) continue;
    for (int64_t d = 0; d < dy.cols; ++d) {
      S& sum = dx.at(rows[m], d);
      sum = static_cast<S>(Sum<S>(sum) + dy(m, d));
    }
  }
}

}  // namespace

template <class S>
void embed_fwd(const StepArgs& args) {
  In<S> table(args.in[0]);  // [V, D]
  Ints ids(args.in[1]);
  Out<S> y(args, 0);  // [T, D]
  for (int64_t t = 0; t < y.rows; ++t) {
    for (int64_t d = 0; d < y.cols; ++d) y.put(t, d, table(ids[t], d));
  }
}

template <class S>
void embed_bwd(const StepArgs& args) {
  scatter_add(In<S>(args.in[0]), Ints(args.in[1]), Out<S>(args, 0),
              attr_of<EmbedAttr>(args).untrained);
}

template <class S>
void gather_rows_fwd(const StepArgs& args) {
  In<S> x(args.in[0]);  // [T, D]
  Ints rows(args.in[1]);
  Out<S> y(args, 0);  // [M, D]
  for (int64_t m = 0; m < y.rows; ++m) {
    for (int64_t d = 0; d < y.cols; ++d) y.put(m, d, rows[m] >= 0 ? x(rows[m], d) : Sum<S>(0));
  }
}

template <class S>
void gather_rows_bwd(const StepArgs& args) {
  scatter_add(In<S>(args.in[0]), Ints(args.in[1]), Out<S>(args, 0));
}

template <class S>
void copy_fwd(const StepArgs& args) {
  In<S> x(args.in[0]);  // [T, D]
  Ints rows(args.in[1]);
  Out<S> y(args, 0);  // [S, D]
  for (int64_t t = 0; t < x.rows; ++t) {
    if (rows[t] < 0) continue;
    for (int64_t d = 0; d < x.cols; ++d) y.at(rows[t], d) = static_cast<S>(x(t, d));
  }
}

WICK_REF_KERNEL(embed_fwd);
WICK_REF_KERNEL(embed_bwd);
WICK_REF_KERNEL(gather_rows_fwd);
WICK_REF_KERNEL(gather_rows_bwd);
WICK_REF_KERNEL(copy_fwd);

}  // namespace wick::ref
