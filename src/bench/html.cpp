// SPDX-License-Identifier: Apache-2.0
#include "bench/html.h"

#include <algorithm>
#include <cmath>

#include "api/report_style.h"
#include "api/report_text.h"
#include "base/check.h"
#include "base/file.h"
#include "bench/bench.h"

namespace wick {

namespace {

using report::escaped;

constexpr const char kBarStyle[] = R"css(
.bars th[scope=row] { width: 30%; }
.bars td.plot { width: 34%; padding-right: 14px; }
.bars td.plot svg { display: block; width: 100%; height: 18px; }
.bars .whisker { stroke: var(--ink); stroke-width: 1; vector-effect: non-scaling-stroke; }
.bars td, .bars thead th { white-space: nowrap; }
.bars small { display: block; color: var(--soft); white-space: normal; }
)css";

std::string milliseconds(double ms) {
  if (ms >= 10'000) return report::fixed(ms / 1e3, 1) + " s";
  if (ms >= 100) return report::fixed(ms, 0) + " ms";
  if (ms >= 1) return report::fixed(ms, 2) + " ms";
  return report::fixed(1e3 * ms, ms >= 0.01 ? 0 : 2) + " µs";
}

std::string bar(const BenchResult& r, const Comparison* before, double most) {
  auto at = [&](double ms) { return report::fixed(100 * ms / most, 3); };
  std::string svg = "<svg viewBox=\"0 0 100 18\" preserveAspectRatio=\"none\" role=\"img\">";
  svg += cat("<title>median ", milliseconds(r.ms.median), ", p10 ", milliseconds(r.ms.p10),
             ", p90 ", milliseconds(r.ms.p90), "</title>");
  svg += cat("<rect class=\"m1\" x=\"0\" y=\"2\" width=\"", at(r.ms.median), "\" height=\"",
             before ? 8 : 14, "\"/>");
  const int middle = before ? 6 : 9;
  svg += cat("<line class=\"whisker\" x1=\"", at(r.ms.p10), "\" x2=\"", at(r.ms.p90), "\" y1=\"",
             middle, "\" y2=\"", middle, "\"/>");
  if (before)
    svg += cat("<rect class=\"m2\" x=\"0\" y=\"11\" width=\"", at(before->before.median),
               "\" height=\"5\"/>");
  return svg + "</svg>";
}

// What does not fit the columns.
std::string details(const BenchResult& r) {
  std::string text;
  auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (r.batch > 0 && r.seq > 0) add(cat(r.batch, " × ", r.seq, " tokens"));
  if (r.rank > 0) add(cat("rank ", r.rank, r.targets.empty() ? "" : " on " + r.targets));
  if (r.gflop > 0) add(report::number(r.gflop, 3) + " GFLOP");
  if (r.bytes > 0) add(report::bytes(r.bytes));
  for (const char* key : {"ratio", "percent_of_forward", "gb_per_second", "kernels", "calls"})
    if (r.more.contains(key) && r.more[key].is_number()) {
      std::string name = key;
      std::replace(name.begin(), name.end(), '_', ' ');
      add(cat(name, " ", report::number(r.more[key].get<double>(), 3)));
    }
  if (r.more.contains("share"))
    add(report::fixed(100 * r.more["share"].get<double>(), 1) + " % of the time");
  if (r.more.contains("note")) add(r.more["note"].get<std::string>());
  return text;
}

std::string row(const BenchResult& r, const Comparison* before, double most) {
  std::string html = cat("<tr><th scope=\"row\">", escaped(r.what));
  if (before && before->change != Change::kNoise)
    html += before->change == Change::kFaster ? " <span class=\"badge good\">faster</span>"
                                              : " <span class=\"badge warn\">slower</span>";
  html += cat("<small>", escaped(details(r)), "</small></th><td class=\"plot\">");
  if (r.ms.runs > 0) html += bar(r, before, most);
  html += "</td>";
  auto cell = [&](const std::string& text) { html += "<td>" + text + "</td>"; };
  cell(r.ms.runs > 0 ? milliseconds(r.ms.median) : "");
  cell(r.ms.runs > 0 ? milliseconds(r.ms.p10) + " – " + milliseconds(r.ms.p90) : "");
  cell(r.tokens_per_second > 0 ? report::count(std::llround(r.tokens_per_second)) : "");
  cell(r.percent_of_peak >= 0.05 ? report::fixed(r.percent_of_peak, 1) + " %" : "");
  return html + "</tr>\n";
}

}  // namespace

void write_bench_html(const std::filesystem::path& path, const BenchMachine& m,
                      const std::vector<BenchResult>& results,
                      const std::vector<Comparison>& before) {
  std::string html = cat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>wick bench: ",
      escaped(m.shape),
      "</title>\n<meta name=\"viewport\" content=\"width=device-width\">\n<style>", report::kStyle,
      kBarStyle, "</style></head><body><main>\n<p class=\"brand\">wick bench</p>\n<h1>",
      escaped(m.shape), "</h1>\n<p class=\"lead\">", escaped(m.description), "; computes in <b>",
      escaped(m.dtype), "</b>, weights rest in <b>", escaped(m.weight_dtype), "</b>");
  if (m.peak_gflops > 0)
    html += cat("; measured peak <b>", report::count(std::llround(m.peak_gflops)), " GFLOP/s</b>");
  if (m.read_gbps > 0) html += cat(", reads <b>", report::fixed(m.read_gbps, 1), " GB/s</b>");
  html +=
      "</p>\n<p class=\"note\">Bars are medians, the thin line reaches from p10 to p90; shorter is "
      "better.";
  if (!before.empty()) html += " The second bar is the baseline.";
  html += "</p>\n";
  for (const BenchTable& table : bench_tables()) {
    double most = 0;
    bool any = false;
    auto of_table = [&](const BenchResult& r) { return r.bench == table.name; };
    auto earlier = [&](const BenchResult& r) -> const Comparison* {
      for (const Comparison& c : before)
        if (c.bench == r.bench && c.what == r.what && c.now.median == r.ms.median) return &c;
      return nullptr;
    };
    for (const BenchResult& r : results) {
      if (!of_table(r)) continue;
      any = true;
      most = std::max({most, r.ms.median, r.ms.p90});
      if (const Comparison* c = earlier(r)) most = std::max(most, c->before.median);
    }
    if (!any) continue;
    html +=
        cat("<section><h2>", escaped(table.name), "</h2><p class=\"note\">", escaped(table.what),
            "</p><div class=\"scroll\"><table class=\"numbers bars\"><thead><tr><th></th><th></th>"
            "<th>median</th><th>p10 – p90</th><th>tokens/s</th><th>of peak</th></tr></thead>"
            "<tbody>\n");
    for (const BenchResult& r : results)
      if (of_table(r)) html += row(r, earlier(r), std::max(most, 1e-12));
    html += "</tbody></table></div></section>\n";
  }
  html += "</main></body></html>\n";
  if (path.has_parent_path()) make_folder(path.parent_path());
  write_file(path, html);
}

}  // namespace wick
