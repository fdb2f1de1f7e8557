// SPDX-License-Identifier: Apache-2.0
// Norms, the embedding and the head, with what an adapter or each of several does to them.
#include <optional>

#include "nn/linear.h"
#include "plan/head_pair.h"

namespace wick::nn {

ValueId AdapterBinding::whole(Recorder& r, const std::string& module) const {
  const WholeModule* m = adapter ? adapter->find_whole(module) : nullptr;
  if (!m) return kNone;
  return r.flat(params, m->offset, m->weight_shape(), module + ".weight");
}

bool AdapterBinding::lane_has_whole(const std::string& module) const {
  for (const AdapterBinding& lane : lanes)
    if (lane.adapter->find_whole(module)) return true;
  return false;
}

ValueId AdapterBinding::rows_of_lane(Recorder& r, size_t lane, ValueId v) const {
  const int64_t each = r.shape(v)[0] / static_cast<int64_t>(lanes.size());
  const int64_t first = static_cast<int64_t>(lane) * each;
  return r.rows(v, first, first + each);
}

namespace {

ValueId whole_or(Recorder& r, const AdapterBinding& binding, const std::string& module,
                 ValueId base) {
  const ValueId own = binding.whole(r, module);
  return own != kNone ? own : base;
}

// What the adapter adds to the rows y of the table.
void add_to_rows(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId y,
                 ValueId ids, int64_t untrained) {
  if (!binding.adapter) return;
  if (const LoraModule* m = binding.adapter->find(module)) {
    ValueId a = r.flat(binding.params, m->a_offset, {m->in, m->rank}, module + ".lora_embedding_A");
    ValueId b =
        r.flat(binding.params, m->b_offset, {m->out, m->rank}, module + ".lora_embedding_B");
    r.linear_into(y, r.embed(a, ids, untrained), b, m->scale);
  }
  if (const std::optional<TokenRows>& t = binding.adapter->tokens()) {
    const int64_t n = t->count();
    ValueId chosen = r.embed(r.flat(binding.frozen, t->selector, {t->vocab, n}, "tokens"), ids);
    // The base's row out, exactly, then the trained one in.
    r.linear_into(y, chosen, r.flat(binding.frozen, t->turned, {t->hidden, n}, "tokens.base"),
                  -1.0f);
    r.linear_into(y, chosen, r.flat(binding.params, t->offset, {t->hidden, n}, "tokens.trained"),
                  1.0f);
  }
}

// The head's pair: h = scale * x Aᵀ, and B.
struct HeadPair {
  ValueId h = kNone, b = kNone;
  HeadPair(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId x) {
    if (!binding.adapter) return;
    if (binding.tied && binding.adapter->tokens()) {
      of_tokens(r, binding, x);
      return;
    }
    const LoraModule* m = binding.adapter->find(module);
    if (!m) return;
    if (r.training() && m->dropout > 0)
      fail(ErrorCode::kUnsupported, module, ": an adapter on the head is trained without dropout; ",
           "leave --lora-dropout or this target out");
    ValueId a = r.flat(binding.params, m->a_offset, {m->rank, m->in}, module + ".lora_A");
    h = r.linear(x, a, kNone, m->scale);
    b = r.flat(binding.params, m->b_offset, {m->out, m->rank}, module + ".lora_B");
  }

 private:
  // What the trained rows change in the logits: x (trained - base)ᵀ, put where the tokens are.
  void of_tokens(Recorder& r, const AdapterBinding& binding, ValueId x) {
    const TokenRows& t = *binding.adapter->tokens();
    const int64_t n = t.count();
    ValueId ones = r.flat(binding.frozen, t.ones, {n, n}, "tokens.ones");
    if (r.plan().value(x).dtype != DType::kF32) {
      if (r.training())
        fail(ErrorCode::kUnsupported, "--trainable-token-indices of a model whose head is tied to ",
             "the embedding is trained in f32 only; add --dtype f32");
      ones = r.embed(ones, r.flat(binding.count, 0, {n}, "count"));
    }
    // A product with ones turns the rows over.
    ValueId rows =
        r.linear(ones, r.flat(binding.params, t.offset, {t.hidden, n}, "tokens.trained"));
    h = r.linear(x, rows);
    r.linear_into(h, x, r.flat(binding.frozen, t.rows, {n, t.hidden}, "tokens.base"), -1.0f);
    b = r.flat(binding.frozen, t.selector, {t.vocab, n}, "tokens");
  }
};

}  // namespace

ValueId rms_norm(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
                 ValueId x, float eps) {
  if (!binding.lane_has_whole(module)) return r.rms_norm(x, whole_or(r, binding, module, w), eps);
  const Value of = r.plan().value(x);
  const int64_t groups = of.shape.cols() / r.shape(w)[0];
  ValueId y = r.temp(of.name + ".normed", of.shape, of.dtype);
  for (size_t k = 0; k < binding.lanes.size(); ++k) {
    ValueId from = binding.rows_of_lane(r, k, x);
    const ValueId rstd =
        r.training() ? r.temp(of.name + ".rstd", {r.shape(from)[0], groups}, DType::kF32) : kNone;
    r.append({Op::kRmsNorm,
              Dir::kForward,
              {from, whole_or(r, binding.lanes[k], module, w)},
              {{binding.rows_of_lane(r, k, y)}, {rstd}},
              NormAttr{eps, groups}});
  }
  return y;
}

ValueId embed(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId table,
              ValueId ids, int64_t untrained) {
  ValueId y = r.embed(whole_or(r, binding, module, table), ids, untrained);
  if (binding.lane_has_whole(module)) {
    // The lanes' tables are looked up each for its own rows, in place of the step just recorded.
    r.plan().steps.pop_back();
    for (size_t k = 0; k < binding.lanes.size(); ++k)
      r.append({Op::kEmbed,
                Dir::kForward,
                {whole_or(r, binding.lanes[k], module, table), binding.rows_of_lane(r, k, ids)},
                {{binding.rows_of_lane(r, k, y)}},
                EmbedAttr{untrained}});
  }
  add_to_rows(r, binding, module, y, ids, untrained);
  for (size_t k = 0; k < binding.lanes.size(); ++k)
    add_to_rows(r, binding.lanes[k], module, binding.rows_of_lane(r, k, y),
                binding.rows_of_lane(r, k, ids), untrained);
  return y;
}

ValueId logits(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
               ValueId x) {
  const HeadPair pair(r, binding, module, x);
  ValueId y = r.linear_f32(x, w);
  if (pair.h != kNone) r.linear_into(y, pair.h, pair.b, 1.0f);
  return y;
}

namespace {

// Whether logits differ between the lanes: then they are a product of each.
bool lanes_differ(const AdapterBinding& binding, const std::string& module) {
  bool changed = binding.lane_has_whole(module);
  for (const AdapterBinding& lane : binding.lanes)
    changed |= lane.adapter->find(module) || (lane.tied && lane.adapter->tokens());
  return changed;
}

}  // namespace

ValueId head(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
             ValueId x, ValueId targets, const HeadAttr& attr) {
  if (!lanes_differ(binding, module)) {
    const HeadPair pair(r, binding, module, x);
    if (pair.h == kNone) return r.head(x, w, targets, attr);
    return head_with_pair(r, x, w, targets, attr, pair.h, pair.b);
  }
  ValueId logp = r.temp("logp", {r.shape(x)[0]}, DType::kF32);
  for (size_t k = 0; k < binding.lanes.size(); ++k) {
    const AdapterBinding& lane = binding.lanes[k];
    ValueId from = binding.rows_of_lane(r, k, x);
    const HeadPair pair(r, lane, module, from);
    head_into(r, binding.rows_of_lane(r, k, logp), from, whole_or(r, lane, module, w),
              binding.rows_of_lane(r, k, targets), attr, pair.h, pair.b);
  }
  return logp;
}

ValueId kl_head(Recorder& r, const AdapterBinding& binding, const std::string& module,
                const KlHeads& heads, const KlAttr& attr) {
  ValueId kl = r.temp("kl", {r.shape(heads.x).rows()}, DType::kF32);
  if (!lanes_differ(binding, module)) {
    const HeadPair pair(r, binding, module, heads.x);
    KlHeads all = heads;
    all.h = pair.h;
    all.b = pair.b;
    kl_head_into(r, kl, all, attr);
    return kl;
  }
  for (size_t k = 0; k < binding.lanes.size(); ++k) {
    const AdapterBinding& lane = binding.lanes[k];
    auto rows = [&](ValueId v) { return binding.rows_of_lane(r, k, v); };
    const ValueId x = rows(heads.x);
    const HeadPair pair(r, lane, module, x);
    kl_head_into(r, rows(kl),
                 {x, whole_or(r, lane, module, heads.w), rows(heads.teacher_x), heads.teacher_w,
                  rows(heads.targets), pair.h, pair.b},
                 attr);
  }
  return kl;
}

}  // namespace wick::nn
