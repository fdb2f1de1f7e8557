// SPDX-License-Identifier: Apache-2.0
#include "nn/linear.h"

namespace wick::nn {

namespace {

struct Adapted {
  const LoraModule* module;
  int64_t first_row;
};

ValueId b_matrix(Recorder& r, const AdapterBinding& binding, const LoraModule& m) {
  return r.flat(binding.params, m.b_offset, {m.out, m.rank}, m.module + ".lora_B");
}

}  // namespace

ValueId linear(Recorder& r, const AdapterBinding& binding, const Linear& l, ValueId x) {
  ValueId y = r.linear(x, l.w);
  if (l.bias != kNone) y = r.bias(y, l.bias);
  if (!binding.adapter) return y;

  std::vector<Adapted> adapted;
  int64_t row = 0;
  for (const Linear::Part& part : l.parts) {
    if (const LoraModule* m = binding.adapter->find(part.module)) adapted.push_back({m, row});
    row += part.rows;
  }
  if (adapted.empty()) return y;

  const bool drops = r.training() && adapted.front().module->dropout > 0;
  if (!drops) {
    // One skinny product for all A: the adapter laid them side by side.
    int64_t ranks = 0;
    for (const Adapted& a : adapted) {
      WICK_CHECK(a.module->a_offset == adapted.front().module->a_offset + ranks * a.module->in);
      ranks += a.module->rank;
    }
    const LoraModule& first = *adapted.front().module;
    ValueId a = r.flat(binding.params, first.a_offset, {ranks, first.in},
                       first.module + (adapted.size() > 1 ? ".lora_A+" : ".lora_A"));
    ValueId h = r.linear(x, a);
    int64_t column = 0;
    for (const Adapted& p : adapted) {
      const LoraModule& m = *p.module;
      r.linear_into(r.cols(y, p.first_row, p.first_row + m.out), r.cols(h, column, column + m.rank),
                    b_matrix(r, binding, m), m.scale);
      column += m.rank;
    }
    return y;
  }
  for (const Adapted& p : adapted) {
    const LoraModule& m = *p.module;
    WICK_CHECK(binding.keys != kNone, "dropout needs the feed of keys");
    ValueId dropped = r.dropout(x, binding.keys, m.dropout, m.site);
    ValueId a = r.flat(binding.params, m.a_offset, {m.rank, m.in}, m.module + ".lora_A");
    ValueId h = r.linear(dropped, a);
    r.linear_into(r.cols(y, p.first_row, p.first_row + m.out), h, b_matrix(r, binding, m), m.scale);
  }
  return y;
}

}  // namespace wick::nn
