// SPDX-License-Identifier: Apache-2.0
#include "app/bench_view.h"

#include <algorithm>
#include <cmath>

#include "app/format.h"
#include "base/check.h"
#include "bench/bench.h"

namespace wick {

namespace {

constexpr size_t kName = 40, kTime = 10;

std::string left(std::string text, size_t width) {
  const size_t columns = columns_of(text);
  if (columns < width) text.append(width - columns, ' ');
  return text;
}

std::string right(const std::string& text, size_t width) {
  const size_t columns = columns_of(text);
  return (columns < width ? std::string(width - columns, ' ') : std::string()) + text;
}

std::string time_text(double ms) {
  return ms > 0 && ms < 0.1 ? general(1e3 * ms, 3) + sign(" µs", " us") : format_ms(ms);
}

std::string range(const Timing& t) {
  return cat(time_text(t.p10), sign(" – ", " - "), time_text(t.p90));
}

std::string settings(const BenchResult& r) {
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (r.batch > 0 && r.seq > 0) add(cat(r.batch, sign(" × ", " x "), r.seq, " tokens"));
  if (r.rank > 0) add(cat("rank ", r.rank, r.targets.empty() ? "" : " on " + r.targets));
  return text;
}

std::string figures(const BenchResult& r) {
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? "" : "  ") + part; };
  if (r.tokens_per_second > 0)
    add(cat(r.tokens_per_second < 100 ? fixed(r.tokens_per_second, 1)
                                      : format_count(std::llround(r.tokens_per_second)),
            " tokens/s"));
  if (r.gflop > 0) add(cat(general(r.gflop, 3), " GFLOP"));
  if (r.percent_of_peak >= 0.05) add(cat(fixed(r.percent_of_peak, 1), " % of peak"));
  if (r.utilisation > 1.001 * r.percent_of_peak / 100)
    add(cat(percent(r.utilisation, 0), " of the read bandwidth"));
  if (r.bytes > 0) add(format_bytes(r.bytes));
  if (r.bench == "train" || r.bench == "memory") add("process peak " + format_bytes(r.peak_bytes));
  for (const auto& [key, value] : r.more.items()) {
    if (key == "note" || key == "share" || !(value.is_number() || value.is_string())) continue;
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', ' ');
    add(cat(name, " ",
            value.is_string()         ? value.get<std::string>()
            : value.is_number_float() ? general(value.get<double>(), 4)
                                      : format_count(value.get<int64_t>())));
  }
  return text;
}

}  // namespace

void BenchView::machine(const BenchMachine& m, const std::string& model) {
  out_.say("device  " + m.description);
  out_.say("model   " + model);
  std::string limits = cat("computes in ", m.dtype);
  if (m.peak_gflops > 0) limits += cat(", peak ", fixed(m.peak_gflops, 0), " GFLOP/s");
  if (m.read_gbps > 0) limits += cat(", reads ", fixed(m.read_gbps, 1), " GB/s");
  out_.say("limits  " + limits + " (measured)");
}

void BenchView::row(const BenchResult& r) {
  if (out_.json()) return;
  if (r.bench != table_) {
    table_ = r.bench;
    out_.result();
    std::string title = r.bench;
    for (const BenchTable& table : bench_tables())
      if (r.bench == table.name) title = cat(r.bench, ": ", table.what);
    out_.result(title);
    note_.clear();
  }
  std::string line = "  " + left(r.what, kName);
  if (r.bench == "profile")
    line +=
        right(time_text(r.ms.median), kTime) + right(percent(r.more["share"].get<double>()), kTime);
  else if (r.ms.runs > 0)
    line += right(time_text(r.ms.median), kTime) + "  " + left(range(r.ms), 22);
  line += "  " + figures(r);
  out_.result(line);
  const std::string under = settings(r);
  std::string note = r.more.contains("note") ? r.more["note"].get<std::string>() : std::string();
  if (!under.empty()) note = note.empty() ? under : under + "; " + note;
  if (!note.empty() && note != note_) out_.say("    " + note);
  note_ = note;
}

void BenchView::comparison(const std::vector<Comparison>& all, size_t lines,
                           const std::string& baseline) {
  out_.result();
  out_.result(cat("against ", baseline));
  int64_t slower = 0, faster = 0;
  for (const Comparison& c : all) {
    const char* mark = c.change == Change::kSlower   ? "slower"
                       : c.change == Change::kFaster ? "faster"
                                                     : "same";
    slower += c.change == Change::kSlower;
    faster += c.change == Change::kFaster;
    const double ratio = c.now.median / c.before.median;
    out_.result(cat("  ", left(c.bench + " " + c.what, kName + 4),
                    right(time_text(c.before.median), kTime), sign(" → ", " -> "),
                    left(time_text(c.now.median), kTime), right(fixed(ratio, 3), 6),
                    sign("×  ", "x  "), mark));
  }
  out_.result(cat(plural(static_cast<int64_t>(all.size()), "row"), " compared, ", slower,
                  " slower, ", faster, " faster; ",
                  static_cast<int64_t>(lines) - static_cast<int64_t>(all.size()),
                  " without a counterpart"));
}

}  // namespace wick
