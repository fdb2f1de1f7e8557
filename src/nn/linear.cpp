// SPDX-License-Identifier: Apache-2.0
#include "nn/linear.h"

#include <algorithm>

#include "plan/head_pair.h"

namespace wick::nn {

namespace {

struct Adapted {
  const LoraModule* module;
  int64_t first_row;
};

std::vector<Adapted> adapted_parts(const AdapterBinding& binding, const Linear& l) {
  std::vector<Adapted> adapted;
  int64_t row = 0;
  for (const Linear::Part& part : l.parts) {
    if (!binding.adapter) break;
    if (const LoraModule* m = binding.adapter->find(part.module)) adapted.push_back({m, row});
    row += part.rows;
  }
  return adapted;
}

class AdaptedLinear {
 public:
  AdaptedLinear(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId x,
                std::vector<Adapted> adapted)
      : r_(r), binding_(binding), l_(l), x_(x), adapted_(std::move(adapted)) {}

  ValueId record() {
    if (adapted_.front().module->m_offset >= 0) return drops() ? scaled_with_dropout() : scaled();
    ValueId y = product(true);
    add_to(y);
    return y;
  }

  // Onto the product y of x, where there are no magnitudes.
  void add_to(ValueId y) {
    const LoraModule& first = *adapted_.front().module;
    if (first.m_offset >= 0)
      fail(ErrorCode::kUnsupported, first.module,
           ": DoRA is trained by one adapter at a time; leave --dora or the others out");
    if (drops())
      add_dropped(y);
    else
      add_pairs(y);
    if (first.a0_offset >= 0) take_start(y);
  }

 private:
  bool drops() const { return r_.training() && adapted_.front().module->dropout > 0; }
  ValueId product(bool with_bias) {
    ValueId y = r_.linear(x_, l_.w);
    return with_bias && l_.bias != kNone ? r_.bias(y, l_.bias) : y;
  }
  ValueId columns(ValueId y, const Adapted& p) {
    return r_.cols(y, p.first_row, p.first_row + p.module->out);
  }
  ValueId a_matrix(const LoraModule& m) {
    return r_.flat(binding_.params, m.a_offset, {m.rank, m.in}, m.module + ".lora_A");
  }
  ValueId b_matrix(const LoraModule& m) {
    return r_.flat(binding_.params, m.b_offset, {m.out, m.rank}, m.module + ".lora_B");
  }
  ValueId magnitudes(const LoraModule& m) {
    return r_.flat(binding_.params, m.m_offset, {m.out}, m.module + ".lora_magnitude_vector");
  }
  int64_t all_ranks() const {
    int64_t ranks = 0;
    for (const Adapted& p : adapted_) ranks += p.module->rank;
    return ranks;
  }
  // All A as one matrix: the adapter laid them side by side.
  ValueId all_a() {
    const LoraModule& first = *adapted_.front().module;
    int64_t ranks = 0;
    for (const Adapted& p : adapted_) {
      WICK_CHECK(p.module->a_offset == first.a_offset + ranks * first.in);
      ranks += p.module->rank;
    }
    return r_.flat(binding_.params, first.a_offset, {ranks, first.in},
                   first.module + (adapted_.size() > 1 ? ".lora_A+" : ".lora_A"));
  }

  // y += scale * (x Aᵀ) Bᵀ, with one skinny product for all A.
  void add_pairs(ValueId y) {
    ValueId h = r_.linear(x_, all_a());
    int64_t column = 0;
    for (const Adapted& p : adapted_) {
      const LoraModule& m = *p.module;
      r_.linear_into(columns(y, p), r_.cols(h, column, column + m.rank), b_matrix(m), m.scale);
      column += m.rank;
    }
  }

  ValueId dropped(const LoraModule& m) {
    WICK_CHECK(binding_.keys != kNone, "dropout needs the feed of keys");
    return r_.dropout(x_, binding_.keys, m.dropout, m.site);
  }
  void add_dropped(ValueId y) {
    for (const Adapted& p : adapted_) {
      const LoraModule& m = *p.module;
      ValueId h = r_.linear(dropped(m), a_matrix(m));
      r_.linear_into(columns(y, p), h, b_matrix(m), m.scale);
    }
  }

  // y -= scale * (x A0ᵀ) B0ᵀ: what PiSSA took out of W.
  void take_start(ValueId y) {
    const LoraModule& first = *adapted_.front().module;
    ValueId a0 = r_.flat(binding_.frozen, first.a0_offset, {all_ranks(), first.in},
                         first.module + ".start_A");
    ValueId h = r_.linear(x_, a0);
    int64_t column = 0;
    for (const Adapted& p : adapted_) {
      const LoraModule& m = *p.module;
      ValueId b0 = r_.flat(binding_.frozen, m.b0_offset, {m.out, m.rank}, m.module + ".start_B");
      r_.linear_into(columns(y, p), r_.cols(h, column, column + m.rank), b0, -m.scale);
      column += m.rank;
    }
  }

  // ‖W + scale B A‖ of each row, for each module. W is read by a product alone, which is what every
  // form of it can do: A's rows go in as if they were tokens.
  std::vector<ValueId> norms() {
    ValueId a = all_a();
    const DType type = r_.plan().value(x_).dtype;
    if (type != DType::kF32) {
      WICK_CHECK(binding_.count != kNone);
      // A lookup of every row, since embed is what widens and narrows.
      a = r_.embed(a, r_.flat(binding_.count, 0, {all_ranks()}, "count"));
    }
    ValueId wa = r_.linear(a, l_.w);  // [all ranks, sum of rows]
    std::vector<ValueId> made;
    int64_t row = 0;
    for (const Adapted& p : adapted_) {
      const LoraModule& m = *p.module;
      ValueId own = r_.cols(r_.rows(wa, row, row + m.rank), p.first_row, p.first_row + m.out);
      ValueId base = r_.flat(l_.squares, p.first_row, {m.out}, m.module + ".squares");
      made.push_back(r_.column_norm(base, own, a_matrix(m), b_matrix(m), m.scale));
      row += m.rank;
    }
    return made;
  }

  ValueId scaled() {
    ValueId y = product(false);
    add_pairs(y);
    const std::vector<ValueId> norm = norms();
    const Value of = r_.plan().value(y);
    ValueId z = r_.temp(of.name + ".scaled", of.shape, of.dtype);
    // Part by part, because that is how z is read: a view is made of whole writes.
    size_t next = 0;
    int64_t row = 0;
    for (const Linear::Part& part : l_.parts) {
      ValueId from = r_.cols(y, row, row + part.rows), to = r_.cols(z, row, row + part.rows);
      if (next < adapted_.size() && adapted_[next].first_row == row) {
        r_.append({Op::kColumnScale,
                   Dir::kForward,
                   {from, magnitudes(*adapted_[next].module), norm[next]},
                   {{to}},
                   {}});
        ++next;
      } else {
        r_.append({Op::kScale, Dir::kForward, {from}, {{to}}, ScaleAttr{1.0f}});
      }
      row += part.rows;
    }
    return l_.bias != kNone ? r_.bias(z, l_.bias) : z;
  }

  // As PEFT has it: the base sees x as it is, what DoRA changes sees the dropped one.
  //   y = x Wᵀ + bias + (d Wᵀ + scale (d Aᵀ) Bᵀ) * m / norm - d Wᵀ,  d = dropout(x)
  ValueId scaled_with_dropout() {
    ValueId y = product(true);
    const std::vector<ValueId> norm = norms();
    auto add = [&](ValueId from, ValueId to, float factor) {
      r_.append(
          {Op::kScale, Dir::kForward, {from}, {{to, OutMode::kAccumulate}}, ScaleAttr{factor}});
    };
    for (size_t i = 0; i < adapted_.size(); ++i) {
      const Adapted& p = adapted_[i];
      const LoraModule& m = *p.module;
      ValueId d = dropped(m);
      ValueId base = r_.linear(d, l_.w);
      ValueId change = r_.linear(r_.linear(d, a_matrix(m)), b_matrix(m), kNone, m.scale);
      ValueId sum = r_.add(columns(base, p), change);
      add(r_.column_scale(sum, magnitudes(m), norm[i]), columns(y, p), 1.0f);
      add(columns(base, p), columns(y, p), -1.0f);
      // The product makes all columns and a gradient must be made of all: of the others, zero.
      int64_t row = 0;
      for (const Linear::Part& other : l_.parts) {
        const int64_t end = row + other.rows;
        if (row != p.first_row) add(r_.cols(base, row, end), r_.cols(y, row, end), 0.0f);
        row = end;
      }
    }
    return y;
  }

  Recorder& r_;
  const AdapterBinding& binding_;
  const Linear& l_;
  ValueId x_;
  std::vector<Adapted> adapted_;
};

}  // namespace

ValueId linear(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId x) {
  if (std::vector<Adapted> adapted = adapted_parts(binding, l); !adapted.empty())
    return AdaptedLinear(r, binding, l, x, std::move(adapted)).record();
  ValueId y = r.linear(x, l.w);
  if (l.bias != kNone) y = r.bias(y, l.bias);
  for (const AdapterBinding& lane : binding.lanes) {
    const int64_t first = lane.first_row, end = first + lane.row_count;
    if (std::vector<Adapted> adapted = adapted_parts(lane, l); !adapted.empty())
      AdaptedLinear(r, lane, l, r.rows(x, first, end), std::move(adapted))
          .add_to(r.rows(y, first, end));
  }
  return y;
}

ValueId embed(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId table,
              ValueId ids) {
  ValueId y = r.embed(table, ids);
  if (!binding.adapter) return y;
  if (const LoraModule* m = binding.adapter->find(module)) {
    ValueId a = r.flat(binding.params, m->a_offset, {m->in, m->rank}, module + ".lora_embedding_A");
    ValueId b =
        r.flat(binding.params, m->b_offset, {m->out, m->rank}, module + ".lora_embedding_B");
    r.linear_into(y, r.embed(a, ids), b, m->scale);
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
  return y;
}

namespace {

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

ValueId logits(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
               ValueId x) {
  const HeadPair pair(r, binding, module, x);
  ValueId y = r.linear_f32(x, w);
  if (pair.h != kNone) r.linear_into(y, pair.h, pair.b, 1.0f);
  return y;
}

ValueId head(Recorder& r, const AdapterBinding& binding, const std::string& module, ValueId w,
             ValueId x, ValueId targets, const HeadAttr& attr) {
  const HeadPair pair(r, binding, module, x);
  if (pair.h == kNone) return r.head(x, w, targets, attr);
  return head_with_pair(r, x, w, targets, attr, pair.h, pair.b);
}

}  // namespace wick::nn
