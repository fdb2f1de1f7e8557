// SPDX-License-Identifier: Apache-2.0
// The closed list of ops. Each paragraph is the op's meaning and the operand order of its steps:
// the recorder writes these orders, the reverse rules and every kernel read them. A "?" marks an
// operand that may be absent (kNone). The last dimension is the columns of a value; T, S, M are
// rows. All sums are in f32 (or the scalar of the ref back end).
//
// Outputs are written, accumulated (y += …) or updated in place, as the step's OutMode says; an op
// supports kAccumulate on an output only where its paragraph says "accumulates".
//
// embed        y[t] = table[ids[t]]; the row attr.untrained gets no gradient by it
//   fwd  in  table [V, D], ids i32 [T]                      out y [T, D]
//   bwd  in  dy [T, D], ids                   out dtable [V, D]  accumulates in token order
//
// linear       y = scale * x wᵀ + bias
//   fwd  in  x [T, K], w [N, K], bias? [N]                  out y [T, N]  writes or accumulates
//   bwd  in  dy [T, N], x? [T, K], w? [N, K]                out dx? [T, K], dw? [N, K], dbias? [N]
//        dx = scale * dy w; dw = scale * dyᵀ x; dbias = Σ_t dy[t]; each writes or accumulates.
//        x is absent when dw is not asked for, w when dx is not.
//
// rms_norm     y[t,g,d] = x[t,g,d] * rstd[t,g] * w[d],  rstd = 1 / sqrt(mean_d x² + eps)
//   fwd  in  x [T, G*D], w [D]                              out y [T, G*D], rstd? f32 [T, G]
//   bwd  in  dy, x, w, rstd                                 out dx? , dw? [D]
//        dx = rstd * (dy*w - x * rstd² * mean_d(dy*w*x)); dw[d] = Σ_{t,g} dy*x*rstd.
//        Both write or accumulate; dw sums in row order.
//
// add_rms_norm sum = a + b,  y = rms_norm(sum)
//   fwd  in  a, b [T, D], w [D]               out sum [T, D], y [T, D], rstd? f32 [T, 1]
//   bwd  in  dy, dsum? [T, D], sum, w, rstd   out d [T, D], dw? [D]
//        d = dsum + rms_norm_bwd(dy): the gradient of a and of b alike. Writes d; dw accumulates or
//        writes.
//
// layer_norm   y[t,d] = (x[t,d] - mean[t]) * rstd[t] * w[d] + b[d],  rstd = 1 / sqrt(variance_d x +
// eps)
//   fwd  in  x [T, D], w [D], b? [D]          out y [T, D], stats? f32 [T, 2] (mean, rstd)
//   bwd  in  dy, x, w, stats                                out dx?, dw? [D], db? [D]
//        with g = dy*w and n = (x - mean) * rstd: dx = rstd * (g - mean_d g - n * mean_d(g*n)); dw
//        = Σ_t dy*n, db = Σ_t dy, in row order. Each writes or accumulates.
//
// softmax      y[t,d] = exp(x[t,d]) / Σ_d exp(x[t,d])
//   fwd  in  x [T, D] (of each row at least one above minus infinity)    out y [T, D]
//   bwd  in  dy, y                            out dx = y * (dy - Σ_d dy*y)  writes or accumulates
//
// rope         rotates each head's halves: (u, v) -> (u cos - v sin, v cos + u sin)
//   fwd  in  x [T, H*E], table f32 [P, E] (E/2 cosines, then E/2 sines), positions i32 [T]   out y
//   bwd  in  dy, table, positions                           out dx  writes or accumulates
//
// attention    y[t,h] = Σ_j p[t,h,j] v[j,h'],  p = softmax_j(scale * q[t,h]·k[j,h']), h' = h /
// (H/K)
//              over the rows j in [begin[t], end[t]); with window w > 0 only j >= end[t] - w.
//   fwd  in  q [T, H*E], k [S, K*E], v [S, K*E], begin i32 [T], end i32 [T]
//        out y [T, H*E], lse? f32 [T, H] (log Σ exp of the scaled scores); an empty range gives y =
//        0, lse = -inf
//   bwd  in  dy, q, k, v, y, lse, begin, end                out dq? , dk? , dv?
//        Requires attr.causal_self: S = T, end[t] = t + 1, begin never decreases. Writes.
//
// gated_act    y[t,f] = act(x[t,f]) * x[t,F+f]
//   fwd  in  x [T, 2F]                                      out y [T, F]
//   bwd  in  dy, x                                          out dx [T, 2F]  writes
//
// add          y = a + b                      in a, b  out y; its reverse passes dy on
// scale        y = factor * x                 in x     out y  writes or accumulates
//   bwd  in  dy                                             out dx  writes or accumulates
// bias         y[t] = x[t] + b                              in x [T, D], b [D]  out y
//   bwd  in  dy                                             out db [D]  writes or accumulates (dx
//   is dy)
//
// dropout      y[t,d] = keep(t,d) ? x[t,d] / (1 - p) : 0;  keep is a pure function of keys[t],
// site, d:
//              word d % 4 of philox(key, d / 4, site), kept when uniform_float(word) >= p
//   fwd  in  x [T, D], keys i32 [T, 2] (low and high word of the 64-bit key)     out y
//   bwd  in  dy, keys                                       out dx  writes or accumulates
//
// gather_rows  y[m] = x[rows[m]], or 0 where rows[m] < 0
//   fwd  in  x [T, D], rows i32 [M]                         out y [M, D]
//   bwd  in  dy [M, D], rows (distinct where >= 0)          out dx [T, D]  writes, 0 where no row
//   points
//
// head         logp[m] = log softmax(x[m] wᵀ + h[m] bᵀ)[targets[m]]; whole logits never exist
//   fwd  in  x [M, D], w [V, D], targets i32 [M] (< 0: the row is ignored, logp = 0), h? [M, R],
//        b? [V, R]; out logp f32 [M], lse? f32 [M], dlogp_dx? [M, D] (∂logp/∂x, made while the
//        logits are at hand), dlogp_dh? [M, R]
//   bwd  in  dlogp f32 [M], x, w, targets, lse, dlogp_dx?, h?, b?, dlogp_dh? (with h)
//        out dx? [M, D], dw? [V, D], dh? [M, R], db? [V, R]; dx, dh write, dw, db accumulate or
//        write. dx[m] = dlogp[m] * (w[target] - Σ_v p_v w[v]), dh the same with b.
//        With attr.skip_below > 0 smaller probabilities may be zero in all gradients (never in
//        lse): all of them in ref; fewer, by the sum so far, or none in other kernels.
//
// segment_sum  y[s] = Σ_{m: segment[m] = s} weight[m] * x[m]   (segment < 0: left out)
//   fwd  in  x f32 [M], weight f32 [M], segment i32 [M]     out y f32 [S]
//   bwd  in  dy? f32 [S] (absent: ones), weight, segment    out dx f32 [M]  writes
//
// column_scale y[t,n] = x[t,n] * m[n] / norm[n]   (DoRA's magnitude over the length it had)
//   fwd  in  x [T, N], m f32 [N], norm f32 [N]              out y [T, N]
//   bwd  in  dy, x, m, norm                                 out dx?, dm? f32 [N]
//        dx = dy * m / norm; dm[n] = Σ_t dy * x / norm, in token order; each writes or accumulates.
//        norm is taken for a constant, as PEFT does.
//
// preference_loss  per pair p of sequences: what a preference costs, from sums of log p
//   fwd  in  logp f32 [2P] (chosen, rejected, chosen, …), reference f32 [2P], tokens f32 [2P]
//        (trained tokens; a pair where one of its two is 0 is empty: all its outputs are 0. KTO
//        takes each sequence by itself)
//        out loss f32 [P], reward f32 [2P], slope? f32 [2P] (∂loss[p]/∂logp, read by the reverse)
//   bwd  in  dloss f32 [P], slope                           out dlogp f32 [2P]  writes
//        The formulas are at PreferenceAttr, and for every back end in plan/preference.h.
//
// kl_head      kl[m] = Σ_v q_v (log q_v - log p_v),  p = softmax((x[m] wᵀ + h[m] bᵀ) / τ), q =
// softmax(tx[m] twᵀ / τ); whole logits never exist, and the teacher gets no gradient
//   fwd  in  x [M, D], w [V, D], tx [M, E], tw [V, E], targets i32 [M] (< 0: the row is ignored),
//        h? [M, R], b? [V, R]; out kl f32 [M], dkl_dx? [M, D], lse? f32 [M, 2] (log Σ exp of the
//        student's and of the teacher's logits over τ), dkl_dh? [M, R] (with h)
//   bwd  in  dkl f32 [M], dkl_dx, x?, w?, tx?, tw?, targets?, lse?, h?, b?, dkl_dh?
//        out dx? [M, D], dw? [V, D], dh? [M, R], db? [V, R]; dx, dh write, dw, db accumulate or
//        write. dx[m] = dkl[m] dkl_dx[m]; dw[v] = Σ_m dkl[m] (p_v - q_v) x[m] / τ; dh, db the same
//        with b and h. All between dkl_dx and dkl_dh is absent unless dw or db is asked for.
//
// Outside differentiation:
// column_norm  y[n] = ‖w[n] + s Σ_r b[n,r] a[r]‖, from what is at hand:
//              y² = base[n] + 2 s Σ_r b[n,r] wa[r,n] + s² Σ_rq b[n,r] b[n,q] (a aᵀ)[r,q]
//   fwd  in  base f32 [N] (Σ_k w²), wa [R, N] (a wᵀ), a f32 [R, K], b f32 [N, R]    out y f32 [N]
// grad_norm    y[s] = sqrt(Σ g²) over the groups of set s   in g f32 [P]   out y f32 [S]
//
// The optimizers (formulas: plan/param_groups.h): one update of all; g is cleared for the next. A
// group reads row `set` of hyper [S, 8] and norm [S]; clip > 0 scales g by min(1, clip / norm).
// adamw        hyper (lr, beta1, beta2, eps, weight_decay, clip, 1-beta1^t, 1-beta2^t); the last
//              two are 1 without bias correction
//   fwd  in  hyper, norm                    out params, m, v, g  all f32 [P], in place
// sgd          hyper (lr, momentum, dampening, nesterov 0 or 1, weight_decay, clip, 0 at the first
//              update else 1, 0)
//   fwd  in  hyper, norm                    out params, m, g  all f32 [P], in place
// lion         hyper (lr, beta1, beta2, 0, weight_decay, clip, 0, 0)
//   fwd  in  hyper, norm                    out params, m, g  all f32 [P], in place
// muon         hyper (lr, momentum, nesterov 0 or 1, Newton-Schulz steps, weight_decay, clip, 0, 0)
//   fwd  in  hyper, norm                    out params, m, g  all f32 [P], in place
// adafactor    hyper (lr, beta2 of this update, eps1, eps2, weight_decay, clip, clip threshold,
//              scale by the parameter 0 or 1)
//   fwd  in  hyper, norm                    out params, factors f32 [F] (rows' then columns' means
//        of each matrix group, in order; a vector's own squares), g  in place
// adamw8       adamw with moments as 8-bit codes in blocks of 256 of a group, one f32 scale each
//   fwd  in  hyper, norm                    out params f32 [P], m codes u8 [P], v codes u8 [P],
//        scales f32 [2, blocks], g f32 [P]  in place
// sample       token[b]: the largest of logits[b], the lowest index among equals, NaN never; -1
//              where there is none above minus infinity. With `how`, drawn from those that pass
//              row b's filters (backend/draw.h has the words and the order of things).
//   fwd  in  logits f32 [B, V], how? i32 [B, 8]
//        out token i32 [B], place? i32 [4, B], log? i32 [R, B]  in place
//        place is where each row stands in a text: token, position, end and cache row of what it
//        runs next (embed, rope, attention, copy). The token is the one that was drawn, 0 for -1;
//        the others grow by one, and with them a step's inputs become the next one's. Rows whose
//        cache row is < 0 stay. log[position % R] receives the token, at its new position.
// copy         y[rows[t]] = x[t], rows < 0 skipped; updates y in place
//   fwd  in  x [T, D], rows i32 [T]                         out y [S, D]
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace wick {

enum class Op : uint8_t {
  kEmbed,
  kLinear,
  kRmsNorm,
  kAddRmsNorm,
  kRope,
  kAttention,
  kGatedAct,
  kAdd,
  kScale,
  kBias,
  kDropout,
  kGatherRows,
  kHead,
  kSegmentSum,
  kColumnScale,
  kPreferenceLoss,
  kKlHead,
  kColumnNorm,
  kGradNorm,
  kAdamw,
  kSgd,
  kLion,
  kMuon,
  kAdafactor,
  kAdamw8,
  kSample,
  kCopy,
  // Differentiable again.
  kLayerNorm,
  kSoftmax,
};
constexpr int kOpCount = static_cast<int>(Op::kSoftmax) + 1;

const char* op_name(Op op);
bool op_is_differentiable(Op op);

enum class Dir : uint8_t { kForward, kBackward };

enum class Act : uint8_t { kSilu, kGeluTanh };

// How coarsely a linear may take x beside codes: in plans that only generate.
enum class Narrow : uint8_t {
  kNo,
  kWords,  // in 15 bits with a scale for every 32 of a row: logits
  kBytes,  // beside codes of 4 bits in 8, with a scale for every 448; beside codes of 8 as words
};
struct EmbedAttr {
  int64_t untrained = -1;  // -1: every row is trained
};
struct LinearAttr {
  float scale = 1.0f;
  Narrow narrow = Narrow::kNo;
};
struct NormAttr {
  float eps = 1e-6f;
  int64_t groups = 1;
};
struct RopeAttr {
  int64_t head_dim = 0;
};
struct AttentionAttr {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1.0f;
  int64_t window = 0;        // 0: none
  bool causal_self = false;  // the promise that attention_bwd needs
};
struct GatedActAttr {
  Act act = Act::kSilu;
};
struct ScaleAttr {
  float factor = 1.0f;
};
struct DropoutAttr {
  float p = 0.0f;
  uint64_t site = 0;
};
// A range [begin, end) of the parameters with its own factors on rate and decay.
struct ParamGroup {
  int64_t begin = 0, end = 0;
  float lr_scale = 1.0f, decay_scale = 1.0f;
  int32_t set = 0;   // the row of hyper and norm: one adapter of several in a run
  int64_t rows = 0;  // of a matrix [rows, (end - begin) / rows]; 0: a vector
};
struct HeadAttr {
  float skip_below = 0.0f;  // 0: every probability counts
};
// Of grad_norm and the optimizers.
struct ParamGroups {
  std::vector<ParamGroup> groups;  // cover [0, P) in order
  int32_t sets = 1;
};
// With c, r the two sums of log p, c', r' their reference, n the tokens, σ the logistic function:
//   kDpo    -(1-ε) log σ(h) - ε log σ(-h),  h = β ((c - c') - (r - r'))
//   kSimpo  the same,  h = β (c / n_c - r / n_r) - γ
//   kOrpo   -β log σ(o(c / n_c) - o(r / n_r)),  o(x) = x - log(1 - e^x); the likelihood that is
//           added to it is the plan's own
//   kKto    λ_d (1 - σ(β (c - c'))) + λ_u σ(β (r - r')); what is fed as reference has the estimate
//           of the divergence added, which is held constant
// reward: β (c - c'), β (r - r'); kSimpo and kOrpo β c / n_c, β r / n_r.
struct PreferenceAttr {
  enum class Kind : uint8_t { kDpo, kSimpo, kOrpo, kKto } kind = Kind::kDpo;
  float beta = 0.1f;                     // β; ORPO's λ
  float gamma = 0;                       // SimPO's margin
  float smoothing = 0;                   // ε of DPO and SimPO
  float desirable = 1, undesirable = 1;  // λ of KTO
};
struct KlAttr {
  float temperature = 1.0f;  // τ
};
struct ColumnNormAttr {
  float scale = 1.0f;  // s
};

using Attr = std::variant<std::monostate, LinearAttr, NormAttr, RopeAttr, AttentionAttr,
                          GatedActAttr, ScaleAttr, DropoutAttr, HeadAttr, ParamGroups,
                          PreferenceAttr, KlAttr, ColumnNormAttr, EmbedAttr>;

}  // namespace wick
