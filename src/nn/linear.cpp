// SPDX-License-Identifier: Apache-2.0
#include "nn/linear.h"

#include <algorithm>
#include <optional>

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

// z = y in the columns [begin, end), which are whole parts: each by itself, as their gradients are
// made.
void take_parts(Recorder& r, const Linear& l, ValueId y, ValueId z, int64_t begin, int64_t end) {
  int64_t first = 0;
  for (const Linear::Part& part : l.parts) {
    if (first >= begin && first + part.rows <= end)
      r.append({Op::kScale,
                Dir::kForward,
                {r.cols(y, first, first + part.rows)},
                {{r.cols(z, first, first + part.rows)}},
                ScaleAttr{1.0f}});
    first += part.rows;
  }
}

// z = y + bias in these rows, each part with the adapter's own bias where it trains one.
void bias_into(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId y, ValueId z) {
  int64_t first = 0;
  for (const Linear::Part& part : l.parts) {
    ValueId b = binding.whole(r, part.module + ".bias");
    if (b == kNone) b = r.flat(l.bias, first, {part.rows}, part.module + ".bias");
    r.append({Op::kBias,
              Dir::kForward,
              {r.cols(y, first, first + part.rows), b},
              {{r.cols(z, first, first + part.rows)}},
              {}});
    first += part.rows;
  }
}

// y + bias; y itself where there is none.
ValueId with_bias(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId y) {
  if (l.bias == kNone) return y;
  bool own = false, all = binding.lanes.empty();
  int64_t begin = -1, end = -1;  // of the adapter's own, which lie one after the other
  for (const Linear::Part& part : l.parts) {
    const std::string name = part.module + ".bias";
    const WholeModule* m = binding.adapter ? binding.adapter->find_whole(name) : nullptr;
    own |= m || binding.lane_has_whole(name);
    all = all && m && (end < 0 || m->offset == end);
    if (m && begin < 0) begin = m->offset;
    if (m) end = m->offset + part.rows;
  }
  if (!own) return r.bias(y, l.bias);
  if (all)
    return r.bias(y,
                  r.flat(binding.params, begin, {end - begin}, l.parts.front().module + ".bias"));
  const Value of = r.plan().value(y);
  ValueId z = r.temp(of.name + ".biased", of.shape, of.dtype);
  if (binding.lanes.empty()) bias_into(r, binding, l, y, z);
  for (size_t k = 0; k < binding.lanes.size(); ++k)
    bias_into(r, binding.lanes[k], l, binding.rows_of_lane(r, k, y), binding.rows_of_lane(r, k, z));
  return z;
}

class AdaptedLinear {
 public:
  AdaptedLinear(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId x,
                std::vector<Adapted> adapted)
      : r_(r), binding_(binding), l_(l), x_(x), adapted_(std::move(adapted)) {}

  ValueId record() {
    if (scales()) return scaled();
    ValueId y = with_bias(r_, binding_, l_, r_.linear(x_, l_.w));
    add_to(y);
    return y;
  }

  // Whether the product is to be scaled as a whole, by scale_into(). With dropout it is not: what
  // the base sees and what DoRA scales are two products.
  bool scales() const { return has_magnitudes() && !drops(); }

  // Whether h of all adapters is one product, and how wide it is.
  bool has_one_h() const { return !drops(); }
  int64_t ranks() const { return all_ranks(); }
  // Makes it before add_to() would, in rows of a value that has been recorded or, kNone, in its
  // own.
  void make_h(ValueId h = kNone) {
    if (h == kNone) {
      h_ = r_.linear(x_, all_a());
      return;
    }
    h_ = h;
    r_.append({Op::kLinear, Dir::kForward, {x_, all_a(), kNone}, {{h}}, LinearAttr{}});
  }

  // Onto the product y of x; where it is scaled, before that.
  void add_to(ValueId y) {
    const LoraModule& first = *adapted_.front().module;
    if (has_magnitudes() && drops())
      add_dropped_and_scaled(y);
    else if (drops())
      add_dropped(y);
    else
      add_pairs(y);
    if (first.a0_offset >= 0) take_start(y);
  }

  // z = y with its magnitudes in place of the rows' norms; as y is where nothing is adapted.
  void scale_into(ValueId y, ValueId z) {
    const std::vector<ValueId> norm = norms();
    int64_t row = 0;
    for (size_t i = 0; i < adapted_.size(); ++i) {
      const Adapted& p = adapted_[i];
      take_parts(r_, l_, y, z, row, p.first_row);
      r_.append({Op::kColumnScale,
                 Dir::kForward,
                 {columns(y, p), magnitudes(*p.module), norm[i]},
                 {{columns(z, p)}},
                 {}});
      row = p.first_row + p.module->out;
    }
    take_parts(r_, l_, y, z, row, r_.plan().value(y).shape.cols());
  }

 private:
  bool has_magnitudes() const { return adapted_.front().module->m_offset >= 0; }
  bool drops() const { return r_.training() && adapted_.front().module->dropout > 0; }
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
    if (h_ == kNone) make_h();
    int64_t column = 0;
    for (const Adapted& p : adapted_) {
      const LoraModule& m = *p.module;
      r_.linear_into(columns(y, p), r_.cols(h_, column, column + m.rank), b_matrix(m), m.scale);
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
    ValueId y = r_.linear(x_, l_.w);
    add_pairs(y);
    const Value of = r_.plan().value(y);
    ValueId z = r_.temp(of.name + ".scaled", of.shape, of.dtype);
    scale_into(y, z);
    return with_bias(r_, binding_, l_, z);
  }

  // As PEFT has it: the base sees x as it is, what DoRA changes sees the dropped one.
  //   y += (d Wᵀ + scale (d Aᵀ) Bᵀ) * m / norm - d Wᵀ,  d = dropout(x)
  void add_dropped_and_scaled(ValueId y) {
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
  }

  Recorder& r_;
  const AdapterBinding& binding_;
  const Linear& l_;
  ValueId x_, h_ = kNone;
  std::vector<Adapted> adapted_;
};

using Lanes = std::vector<std::optional<AdaptedLinear>>;

// h of all lanes, one beside the other, as then are their reverses: so a device can make each kind
// in one launch. Lanes of the same ranks have rows of one value.
void make_h(Recorder& r, const AdapterBinding& binding, ValueId x, Lanes& lanes) {
  bool alike = !lanes.empty();
  for (const auto& lane : lanes)
    alike = alike && lane && lane->has_one_h() && lane->ranks() == lanes.front()->ranks();
  const Value of = r.plan().value(x);
  const ValueId h =
      alike ? r.temp(of.name + ".h", {of.shape[0], lanes.front()->ranks()}, of.dtype) : kNone;
  for (size_t k = 0; k < lanes.size(); ++k)
    if (lanes[k] && lanes[k]->has_one_h())
      lanes[k]->make_h(alike ? binding.rows_of_lane(r, k, h) : kNone);
}

// The base's product of all rows, and each lane's change of its own.
ValueId with_lanes(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId x) {
  Lanes lanes(binding.lanes.size());
  bool scaled = false;
  for (size_t k = 0; k < lanes.size(); ++k) {
    const AdapterBinding& lane = binding.lanes[k];
    std::vector<Adapted> adapted = adapted_parts(lane, l);
    if (adapted.empty()) continue;
    lanes[k].emplace(r, lane, l, binding.rows_of_lane(r, k, x), std::move(adapted));
    scaled |= lanes[k]->scales();
  }
  auto rows_of = [&](ValueId v, size_t k) { return binding.rows_of_lane(r, k, v); };
  ValueId y = r.linear(x, l.w);
  if (!scaled) y = with_bias(r, binding, l, y);
  make_h(r, binding, x, lanes);
  for (size_t k = 0; k < lanes.size(); ++k)
    if (lanes[k]) lanes[k]->add_to(rows_of(y, k));
  if (!scaled) return y;
  const Value of = r.plan().value(y);
  ValueId z = r.temp(of.name + ".scaled", of.shape, of.dtype);
  for (size_t k = 0; k < lanes.size(); ++k) {
    if (lanes[k] && lanes[k]->scales())
      lanes[k]->scale_into(rows_of(y, k), rows_of(z, k));
    else
      take_parts(r, l, rows_of(y, k), rows_of(z, k), 0, of.shape.cols());
  }
  return with_bias(r, binding, l, z);
}

}  // namespace

ValueId linear(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId x) {
  if (std::vector<Adapted> adapted = adapted_parts(binding, l); !adapted.empty())
    return AdaptedLinear(r, binding, l, x, std::move(adapted)).record();
  return with_lanes(r, binding, l, x);
}

}  // namespace wick::nn
