// SPDX-License-Identifier: Apache-2.0
#include "plan/recorder.h"

#include "plan/head_pair.h"

namespace wick {

namespace {

// A shape rule of an op that the caller broke: our mistake, not a user's, since files and options
// are checked before anything is recorded.
void require(bool holds, const Plan& plan, Op op, std::initializer_list<ValueId> operands,
             const char* rule) {
  if (holds) return;
  std::string got;
  for (ValueId v : operands)
    got += cat(got.empty() ? "" : ", ", v == kNone ? "none" : plan.value(v).name, " ",
               v == kNone ? "" : plan.value(v).shape.str());
  fail(ErrorCode::kInternal, op_name(op), ": got ", got, "; wanted ", rule);
}

}  // namespace

ValueId Recorder::root(std::string name, Shape shape, DType dtype, Kind kind) {
  ValueId id = static_cast<ValueId>(plan_.values.size());
  int64_t ld = shape.cols();
  plan_.values.push_back({std::move(name), shape, dtype, kind, id, 0, ld});
  return id;
}

ValueId Recorder::weight(std::string name, Shape shape, DType dtype) {
  return root(std::move(name), shape, dtype, Kind::kWeight);
}
ValueId Recorder::state(std::string name, Shape shape, DType dtype) {
  return root(std::move(name), shape, dtype, Kind::kState);
}
ValueId Recorder::feed(std::string name, Shape shape, DType dtype) {
  return root(std::move(name), shape, dtype, Kind::kFeed);
}
ValueId Recorder::temp(std::string name, Shape shape, DType dtype) {
  return root(std::move(name), shape, dtype, Kind::kTemp);
}

ValueId Recorder::view(ValueId v, int64_t offset, int64_t ld, Shape shape, std::string name) {
  const Value& of = plan_.value(v);
  Value made{std::move(name), shape, of.dtype, of.kind, of.root, offset, ld};
  plan_.values.push_back(std::move(made));
  return static_cast<ValueId>(plan_.values.size() - 1);
}

ValueId Recorder::rows(ValueId v, int64_t begin, int64_t end, std::string name) {
  const Value& of = plan_.value(v);
  WICK_CHECK(of.shape.rank() >= 1 && begin >= 0 && begin < end && end <= of.shape[0], of.name,
             " rows ", begin, ":", end, " of ", of.shape.str());
  if (begin == 0 && end == of.shape[0]) return v;
  Shape shape = of.shape.rank() == 1 ? Shape{end - begin} : Shape{end - begin, of.shape.cols()};
  int64_t offset = of.offset + (of.shape.rank() == 1 ? begin : begin * of.ld);
  int64_t ld = of.shape.rank() == 1 ? end - begin : of.ld;
  if (name.empty()) name = cat(of.name, "[", begin, ":", end, "]");
  return view(v, offset, ld, shape, std::move(name));
}

ValueId Recorder::cols(ValueId v, int64_t begin, int64_t end, std::string name) {
  const Value& of = plan_.value(v);
  WICK_CHECK(of.shape.rank() == 2 && begin >= 0 && begin < end && end <= of.shape.cols(), of.name,
             " columns ", begin, ":", end, " of ", of.shape.str());
  if (begin == 0 && end == of.shape.cols()) return v;
  if (name.empty()) name = cat(of.name, "[:,", begin, ":", end, "]");
  return view(v, of.offset + begin, of.ld, {of.shape.rows(), end - begin}, std::move(name));
}

ValueId Recorder::flat(ValueId v, int64_t offset, Shape shape, std::string name) {
  const Value& of = plan_.value(v);
  WICK_CHECK(of.shape.rank() == 1 && offset >= 0 && offset + shape.elements() <= of.shape[0], name,
             " at ", offset, " of ", of.shape.str());
  return view(v, of.offset + offset, shape.cols(), shape, std::move(name));
}

std::string Recorder::derived(ValueId v, const char* suffix) const {
  return cat(plan_.value(v).name, ".", suffix);
}

ValueId Recorder::like(ValueId v, const char* suffix) {
  Value of = plan_.value(v);
  return temp(derived(v, suffix), of.shape, of.dtype);
}

ValueId Recorder::embed(ValueId table, ValueId ids, int64_t untrained) {
  require(shape(table).rank() == 2 && shape(ids).rank() == 1, plan_, Op::kEmbed, {table, ids},
          "table [V, D], ids [T]");
  ValueId y = temp("embed", {shape(ids)[0], shape(table)[1]}, activations_);
  append({Op::kEmbed, Dir::kForward, {table, ids}, {{y}}, EmbedAttr{untrained}});
  return y;
}

ValueId Recorder::linear(ValueId x, ValueId w, ValueId bias, float scale) {
  return linear_as(plan_.value(x).dtype, Narrow::kBytes, x, w, bias, scale);
}

ValueId Recorder::linear_f32(ValueId x, ValueId w) {
  return linear_as(DType::kF32, Narrow::kWords, x, w, kNone, 1.0f);
}

ValueId Recorder::linear_as(DType dtype, Narrow coarsest, ValueId x, ValueId w, ValueId bias,
                            float scale) {
  require(shape(x).rank() == 2 && shape(w).rank() == 2 && shape(x)[1] == shape(w)[1] &&
              (bias == kNone || shape(bias).elements() == shape(w)[0]),
          plan_, Op::kLinear, {x, w, bias}, "x [T, K], w [N, K], bias [N]");
  ValueId y = temp(derived(w, "out"), {shape(x)[0], shape(w)[0]}, dtype);
  const bool may = narrow_ && dtype_is_quantized(plan_.value(w).dtype);
  const Narrow narrow = may ? coarsest : Narrow::kNo;
  append({Op::kLinear, Dir::kForward, {x, w, bias}, {{y}}, LinearAttr{scale, narrow}});
  return y;
}

void Recorder::linear_into(ValueId y, ValueId x, ValueId w, float scale) {
  require(shape(x)[1] == shape(w)[1] && shape(y)[1] == shape(w)[0] && shape(y)[0] == shape(x)[0],
          plan_, Op::kLinear, {x, w, y}, "x [T, K], w [N, K], y [T, N]");
  append(
      {Op::kLinear, Dir::kForward, {x, w, kNone}, {{y, OutMode::kAccumulate}}, LinearAttr{scale}});
}

ValueId Recorder::rms_norm(ValueId x, ValueId w, float eps) {
  int64_t width = shape(w).elements();
  require(shape(x).rank() == 2 && width > 0 && shape(x)[1] % width == 0, plan_, Op::kRmsNorm,
          {x, w}, "x [T, G*D], w [D]");
  int64_t groups = shape(x)[1] / width;
  ValueId y = like(x, "normed");
  ValueId rstd = training_ ? temp(derived(x, "rstd"), {shape(x)[0], groups}, DType::kF32) : kNone;
  append({Op::kRmsNorm, Dir::kForward, {x, w}, {{y}, {rstd}}, NormAttr{eps, groups}});
  return y;
}

Recorder::SumAndNorm Recorder::add_rms_norm(ValueId a, ValueId b, ValueId w, float eps) {
  require(shape(a) == shape(b) && shape(a)[1] == shape(w).elements(), plan_, Op::kAddRmsNorm,
          {a, b, w}, "a, b [T, D], w [D]");
  ValueId sum = like(a, "sum"), y = like(a, "normed");
  ValueId rstd = training_ ? temp(derived(a, "rstd"), {shape(a)[0], 1}, DType::kF32) : kNone;
  append({Op::kAddRmsNorm, Dir::kForward, {a, b, w}, {{sum}, {y}, {rstd}}, NormAttr{eps, 1}});
  return {sum, y};
}

ValueId Recorder::layer_norm(ValueId x, ValueId w, ValueId b, float eps) {
  require(shape(x).rank() == 2 && shape(x)[1] == shape(w).elements() &&
              (b == kNone || shape(b) == shape(w)),
          plan_, Op::kLayerNorm, {x, w, b}, "x [T, D], w and b [D]");
  ValueId y = like(x, "normed");
  ValueId stats = training_ ? temp(derived(x, "stats"), {shape(x)[0], 2}, DType::kF32) : kNone;
  append({Op::kLayerNorm, Dir::kForward, {x, w, b}, {{y}, {stats}}, NormAttr{eps, 1}});
  return y;
}

ValueId Recorder::softmax(ValueId x) {
  require(shape(x).rank() == 2, plan_, Op::kSoftmax, {x}, "x [T, D]");
  ValueId y = like(x, "softmax");
  append({Op::kSoftmax, Dir::kForward, {x}, {{y}}, {}});
  return y;
}

ValueId Recorder::rope(ValueId x, ValueId table, ValueId positions, int64_t head_dim) {
  require(head_dim > 0 && head_dim % 2 == 0 && shape(x)[1] % head_dim == 0 &&
              shape(table)[1] == head_dim && shape(positions)[0] == shape(x)[0],
          plan_, Op::kRope, {x, table, positions}, "x [T, H*E], table [P, E], positions [T]");
  ValueId y = like(x, "rotated");
  append({Op::kRope, Dir::kForward, {x, table, positions}, {{y}}, RopeAttr{head_dim}});
  return y;
}

ValueId Recorder::attention(ValueId q, ValueId k, ValueId v, ValueId begin, ValueId end,
                            const AttentionAttr& a) {
  require(a.kv_heads > 0 && a.heads % a.kv_heads == 0 && shape(q)[1] == a.heads * a.head_dim &&
              shape(k)[1] == a.kv_heads * a.head_dim && shape(v) == shape(k) &&
              shape(begin)[0] == shape(q)[0] && shape(end)[0] == shape(q)[0] &&
              (!a.causal_self || shape(k)[0] == shape(q)[0]),
          plan_, Op::kAttention, {q, k, v, begin, end},
          "q [T, H*E], k and v [S, K*E], begin and end [T]");
  ValueId y = temp(derived(q, "attended"), shape(q), plan_.value(q).dtype);
  ValueId lse = training_ ? temp(derived(q, "lse"), {shape(q)[0], a.heads}, DType::kF32) : kNone;
  append({Op::kAttention, Dir::kForward, {q, k, v, begin, end}, {{y}, {lse}}, a});
  return y;
}

ValueId Recorder::gated_act(ValueId x, Act act) {
  require(shape(x).rank() == 2 && shape(x)[1] % 2 == 0, plan_, Op::kGatedAct, {x}, "x [T, 2F]");
  ValueId y = temp(derived(x, "gated"), {shape(x)[0], shape(x)[1] / 2}, plan_.value(x).dtype);
  append({Op::kGatedAct, Dir::kForward, {x}, {{y}}, GatedActAttr{act}});
  return y;
}

ValueId Recorder::add(ValueId a, ValueId b) {
  require(shape(a) == shape(b), plan_, Op::kAdd, {a, b}, "two of one shape");
  ValueId y = like(a, "sum");
  append({Op::kAdd, Dir::kForward, {a, b}, {{y}}, {}});
  return y;
}

ValueId Recorder::scale(ValueId x, float factor) {
  ValueId y = like(x, "scaled");
  append({Op::kScale, Dir::kForward, {x}, {{y}}, ScaleAttr{factor}});
  return y;
}

ValueId Recorder::bias(ValueId x, ValueId b) {
  require(shape(x)[1] == shape(b).elements(), plan_, Op::kBias, {x, b}, "x [T, D], b [D]");
  ValueId y = like(x, "biased");
  append({Op::kBias, Dir::kForward, {x, b}, {{y}}, {}});
  return y;
}

ValueId Recorder::dropout(ValueId x, ValueId keys, float p, uint64_t site) {
  require(shape(keys) == Shape({shape(x)[0], 2}) && p >= 0 && p < 1, plan_, Op::kDropout, {x, keys},
          "x [T, D], keys [T, 2], p in [0, 1)");
  ValueId y = like(x, "dropped");
  append({Op::kDropout, Dir::kForward, {x, keys}, {{y}}, DropoutAttr{p, site}});
  return y;
}

ValueId Recorder::gather_rows(ValueId x, ValueId rows) {
  require(shape(x).rank() == 2 && shape(rows).rank() == 1, plan_, Op::kGatherRows, {x, rows},
          "x [T, D], rows [M]");
  ValueId y = temp(derived(x, "gathered"), {shape(rows)[0], shape(x)[1]}, plan_.value(x).dtype);
  append({Op::kGatherRows, Dir::kForward, {x, rows}, {{y}}, {}});
  return y;
}

ValueId Recorder::head(ValueId x, ValueId w, ValueId targets, const HeadAttr& attr) {
  require(shape(x)[1] == shape(w)[1] && shape(targets)[0] == shape(x)[0], plan_, Op::kHead,
          {x, w, targets}, "x [M, D], w [V, D], targets [M]");
  int64_t m = shape(x)[0];
  ValueId logp = temp("logp", {m}, DType::kF32);
  ValueId lse = kNone, slope = kNone;
  if (training_) {
    lse = temp("head.lse", {m}, DType::kF32);
    slope = temp("head.dlogp_dx", shape(x), plan_.value(x).dtype);
  }
  append({Op::kHead, Dir::kForward, {x, w, targets}, {{logp}, {lse}, {slope}}, attr});
  return logp;
}

ValueId Recorder::segment_sum(ValueId x, ValueId weight, ValueId segment, int64_t segments) {
  require(shape(x) == shape(weight) && shape(x) == shape(segment) && segments > 0, plan_,
          Op::kSegmentSum, {x, weight, segment}, "x, weight, segment [M]");
  ValueId y = temp("segment_sum", {segments}, DType::kF32);
  append({Op::kSegmentSum, Dir::kForward, {x, weight, segment}, {{y}}, {}});
  return y;
}

ValueId Recorder::column_scale(ValueId x, ValueId m, ValueId norm) {
  require(shape(m).elements() == shape(x).cols() && shape(m) == shape(norm), plan_,
          Op::kColumnScale, {x, m, norm}, "x [T, N], m and norm [N]");
  ValueId y = like(x, ".scaled");
  append({Op::kColumnScale, Dir::kForward, {x, m, norm}, {{y}}, {}});
  return y;
}

Recorder::Preference Recorder::preference_loss(ValueId logp, ValueId reference, ValueId tokens,
                                               const PreferenceAttr& attr) {
  const int64_t sequences = shape(logp).elements();
  require(sequences % 2 == 0 && shape(reference) == shape(logp) && shape(tokens) == shape(logp),
          plan_, Op::kPreferenceLoss, {logp, reference, tokens}, "three of one shape [2P]");
  ValueId loss = temp("preference_loss", {sequences / 2}, DType::kF32);
  ValueId reward = temp("reward", {sequences}, DType::kF32);
  ValueId slope = training_ ? temp("preference_slope", {sequences}, DType::kF32) : kNone;
  append({Op::kPreferenceLoss,
          Dir::kForward,
          {logp, reference, tokens},
          {{loss}, {reward}, {slope}},
          attr});
  return {loss, reward};
}

ValueId Recorder::kl_head(ValueId x, ValueId w, ValueId teacher_x, ValueId teacher_w,
                          ValueId targets, const KlAttr& attr) {
  ValueId kl = temp("kl", {shape(x).rows()}, DType::kF32);
  kl_head_into(*this, kl, {x, w, teacher_x, teacher_w, targets}, attr);
  return kl;
}

ValueId Recorder::column_norm(ValueId base, ValueId wa, ValueId a, ValueId b, float scale) {
  const int64_t out = shape(base).elements(), rank = shape(a).rows();
  require(shape(wa) == Shape{rank, out} && shape(b) == Shape{out, rank}, plan_, Op::kColumnNorm,
          {base, wa, a, b}, "base [N], wa [R, N], a [R, K], b [N, R]");
  ValueId y = temp(derived(b, ".norm"), {out}, DType::kF32);
  append({Op::kColumnNorm, Dir::kForward, {base, wa, a, b}, {{y}}, ColumnNormAttr{scale}});
  return y;
}

ValueId Recorder::grad_norm(ValueId grads, ParamGroups groups) {
  ValueId y = temp("grad_norm", {groups.sets}, DType::kF32);
  append({Op::kGradNorm, Dir::kForward, {grads}, {{y}}, std::move(groups)});
  return y;
}

void Recorder::optimizer(Op op, ValueId hyper, ValueId norm, ValueId params,
                         std::vector<ValueId> states, ValueId grads, ParamGroups attr) {
  require(shape(hyper).elements() == 8 * attr.sets && shape(norm).elements() == attr.sets &&
              shape(params) == shape(grads),
          plan_, op, {hyper, norm, params, grads}, "hyper [S, 8], norm [S], two of one shape [P]");
  std::vector<Output> outputs = {{params, OutMode::kUpdate}};
  for (ValueId state : states) outputs.push_back({state, OutMode::kUpdate});
  outputs.push_back({grads, OutMode::kUpdate});
  append({op, Dir::kForward, {hyper, norm}, std::move(outputs), std::move(attr)});
}

void Recorder::adamw(ValueId hyper, ValueId norm, ValueId params, ValueId m, ValueId v,
                     ValueId grads, ParamGroups attr) {
  require(shape(params) == shape(m) && shape(params) == shape(v), plan_, Op::kAdamw, {params, m, v},
          "three of one shape [P]");
  optimizer(Op::kAdamw, hyper, norm, params, {m, v}, grads, std::move(attr));
}

ValueId Recorder::sample(ValueId logits, ValueId place, ValueId log, ValueId how) {
  const int64_t rows = shape(logits).rows();
  require((place == kNone || shape(place) == Shape{4, rows}) &&
              (log == kNone || (place != kNone && shape(log).cols() == rows)) &&
              (how == kNone || shape(how) == Shape{rows, 8}),
          plan_, Op::kSample, {logits, place, log, how},
          "logits [B, V], place [4, B], log [R, B], how [B, 8]");
  ValueId token = temp("token", {rows}, DType::kI32);
  append({Op::kSample,
          Dir::kForward,
          {logits, how},
          {{token}, {place, OutMode::kUpdate}, {log, OutMode::kUpdate}},
          {}});
  return token;
}

void Recorder::copy(ValueId x, ValueId rows, ValueId y) {
  require(shape(x)[1] == shape(y)[1] && shape(rows)[0] == shape(x)[0], plan_, Op::kCopy,
          {x, rows, y}, "x [T, D], rows [T], y [S, D]");
  append({Op::kCopy, Dir::kForward, {x, rows}, {{y, OutMode::kUpdate}}, {}});
}

void Recorder::begin_block(bool recompute) {
  int32_t at = static_cast<int32_t>(plan_.steps.size());
  plan_.blocks.push_back({at, at, recompute});
}

void Recorder::end_block() { plan_.blocks.back().end = static_cast<int32_t>(plan_.steps.size()); }

}  // namespace wick
