// SPDX-License-Identifier: Apache-2.0
#include "bench/result.h"

#include "base/check.h"

namespace wick {

Json to_json(const BenchResult& r, const BenchMachine& m) {
  Json line = {{"bench", r.bench},
               {"what", r.what},
               {"shape", m.shape},
               {"device", m.device},
               {"isa", m.isa},
               {"threads", m.threads},
               {"dtype", m.dtype},
               {"weight_dtype", m.weight_dtype},
               {"batch", r.batch},
               {"seq", r.seq},
               {"rank", r.rank},
               {"targets", r.targets},
               {"ms", r.ms.median},
               {"ms_p10", r.ms.p10},
               {"ms_p90", r.ms.p90},
               {"runs", r.ms.runs},
               {"tokens_per_second", r.tokens_per_second},
               {"peak_bytes", r.peak_bytes},
               {"gflop", r.gflop},
               {"percent_of_peak", r.percent_of_peak},
               {"utilisation", r.utilisation}};
  if (r.bytes > 0) line["bytes"] = r.bytes;
  for (const auto& [key, value] : r.more.items()) line[key] = value;
  return line;
}

BenchResult result_from_json(const Json& j, const std::string& where) {
  BenchResult r;
  r.bench = get_string(j, "bench", where);
  r.what = get_string(j, "what", where);
  r.batch = get_int(j, "batch", where, 0);
  r.seq = get_int(j, "seq", where, 0);
  r.rank = get_int(j, "rank", where, 0);
  r.targets = get_string(j, "targets", where, "");
  r.ms.median = get_float(j, "ms", where, {}, {0.0, 1e15});
  r.ms.p10 = get_float(j, "ms_p10", where, {}, {0.0, 1e15});
  r.ms.p90 = get_float(j, "ms_p90", where, {}, {0.0, 1e15});
  r.ms.runs = get_int(j, "runs", where, 0);
  r.tokens_per_second = get_float(j, "tokens_per_second", where, 0.0);
  r.peak_bytes = get_int(j, "peak_bytes", where, 0);
  r.bytes = get_int(j, "bytes", where, 0);
  return r;
}

std::string result_key(const Json& line) {
  std::string key;
  for (const char* field :
       {"bench", "what", "shape", "device", "isa", "threads", "dtype", "weight_dtype", "batch",
        "seq", "rank", "targets", "adapters", "new_tokens", "trained_share", "trained_blocks"}) {
    const Json* member = find_member(line, field);
    key += cat(field, "=", member ? member->dump() : "", ";");
  }
  return key;
}

}  // namespace wick
