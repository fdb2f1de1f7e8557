// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "api/internal.h"
#include "api/report_chart.h"
#include "api/report_text.h"
#include "base/file.h"

namespace wick {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Input {
  TrainOptions options;
  ModelInfo model;
  DeviceReport device;
  Forecast forecast;
  TrainResult result;
};

Input ordinary() {
  Input in;
  in.options.data = "data/sql";
  in.model.path = "models/x";
  in.model.model_type = "qwen3";
  in.model.parameters = 3247808;
  in.model.weight_dtype = "bf16";
  in.device.name = "cpu";
  in.device.description = "a CPU";
  in.device.threads = 2;
  in.forecast.weights = 6500000;
  in.forecast.params = in.forecast.gradients = 1000;
  in.forecast.moments = 2000;
  in.forecast.arena = 9000000;
  in.forecast.peak_bytes = 15504000;
  for (int i = 1; i <= 48; ++i) {
    StepReport s;
    s.step = i * 10;
    s.steps = 480;
    s.loss = 4.0 * std::exp(-i / 10.0) + 0.03;
    s.learning_rate = 2e-3 * (1 - i / 60.0);
    s.tokens_per_second = 4000 + 10 * (i % 7);
    s.grad_norm = 1.0 / i;
    s.tokens = i * 8000;
    in.result.history.push_back(s);
  }
  for (int i = 0; i <= 4; ++i) {
    EvalReport e;
    e.step = i * 120;
    e.loss = 3.9 - 0.9 * i;
    e.perplexity = std::exp(e.loss);
    in.result.evals.push_back(e);
  }
  in.result.steps = 480;
  in.result.first_loss = 3.9, in.result.final_loss = 0.06;
  in.result.first_valid_loss = 3.9, in.result.valid_loss = 0.3;
  in.result.tokens = 384000;
  in.result.seconds = 95.5;
  in.result.peak_bytes = 60000000;
  in.result.samples = {{"How many boats?", "SELECT 1;", "The boat is red.", "SELECT 1;"}};
  return in;
}

std::string written(const Input& in) {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("wick_report_" + std::to_string(getpid()) + ".html");
  write_report(path, in.options, in.model, in.device, in.forecast, in.result);
  std::string html = read_file(path);
  std::filesystem::remove(path);
  return html;
}

// "" where every element that is opened is closed in order, attributes are quoted and no bare & or
// < stands in a text; else the first offence.
std::string offence(const std::string& html) {
  static const std::set<std::string> kVoid = {"meta", "br", "!doctype"};
  std::vector<std::string> open;
  size_t at = 0;
  auto near = [&] { return " near: " + html.substr(at > 40 ? at - 40 : 0, 100); };
  while (at < html.size()) {
    char c = html[at];
    if (c == '&') {
      size_t end = html.find(';', at);
      if (end == std::string::npos || end - at > 6) return "a bare &" + near();
      at = end + 1;
    } else if (c == '>') {
      return "a bare >" + near();
    } else if (c == '<') {
      bool closes = html[at + 1] == '/';
      size_t name_from = at + 1 + closes, name_to = name_from;
      while (std::isalnum(static_cast<unsigned char>(html[name_to])) || html[name_to] == '!')
        ++name_to;
      std::string name = html.substr(name_from, name_to - name_from);
      if (name.empty()) return "a bare <" + near();
      size_t end = name_to;
      for (bool quoted = false; end < html.size() && (quoted || html[end] != '>'); ++end) {
        if (html[end] == '"') quoted = !quoted;
        if (html[end] == '<') return "a < inside a tag" + near();
      }
      if (end >= html.size()) return "a tag without an end" + near();
      if (closes) {
        if (open.empty() || open.back() != name) return "</" + name + "> closes nothing" + near();
        open.pop_back();
      } else if (!kVoid.count(name) && html[end - 1] != '/') {
        open.push_back(name);
      }
      at = end + 1;
      if (name == "style" && !closes) at = html.find("</style", at);
    } else {
      ++at;
    }
  }
  return open.empty() ? "" : "<" + open.back() + "> is never closed";
}

size_t occurrences(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Report, OrdinaryRun) {
  std::string html = written(ordinary());
  EXPECT_EQ(offence(html), "");
  for (const char* part : {"models/x", "data/sql", "3.9000", "0.3000", "49.4 → 1.35", "SELECT 1;",
                           "The boat is red.", "log scale", "learning_rate", "tokens per second",
                           "15,504,000", "prefers-color-scheme", "exact"})
    EXPECT_NE(html.find(part), std::string::npos) << part;
  EXPECT_EQ(occurrences(html, "<svg"), 5u);  // loss, three small ones, memory
}

TEST(Report, NeedsNothingFromElsewhere) {
  std::string html = written(ordinary());
  for (const char* part : {"<script", "src=", "href=", "url(", "@import"})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
  // The one address is SVG's namespace.
  EXPECT_EQ(occurrences(html, "http"), occurrences(html, "xmlns=\"http://www.w3.org/2000/svg\""));
}

TEST(Report, TextsFromOutsideAreEscaped) {
  Input in = ordinary();
  const std::string evil =
      "</pre><script>alert(\"x\")</script><img src='y' onerror=z>&lt; \xFF\x01";
  in.options.data = in.options.adapter_path = in.options.init_adapter = evil;
  in.options.dataset.system_prompt = evil;
  in.options.targets = {evil};
  in.model.path = in.model.model_type = in.model.weight_dtype = evil;
  in.device.name = in.device.description = in.device.isa = evil;
  in.result.samples = {{evil, evil, evil, evil}};
  std::string html = written(in);
  EXPECT_EQ(offence(html), "");
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_EQ(html.find('\xFF'), std::string::npos);
  EXPECT_EQ(html.find('\x01'), std::string::npos);
  EXPECT_NE(html.find("&amp;lt; \xEF\xBF\xBD\xEF\xBF\xBD"), std::string::npos);
}

TEST(Report, EmptyRun) {
  Input in;
  in.result.interrupted = true;
  std::string html = written(in);
  EXPECT_EQ(offence(html), "");
  EXPECT_NE(html.find("no loss to draw"), std::string::npos);
  EXPECT_NE(html.find("--resume"), std::string::npos);
  EXPECT_NE(html.find("the model inside wick"), std::string::npos);
}

TEST(Report, OnePointOnly) {
  Input in = ordinary();
  in.result.history.resize(1);
  in.result.evals.clear();
  std::string html = written(in);
  EXPECT_EQ(offence(html), "");
  EXPECT_NE(html.find("train mark"), std::string::npos);
  EXPECT_NE(html.find("no valid.jsonl"), std::string::npos);
}

TEST(Report, LossThatIsNotFinite) {
  Input in = ordinary();
  in.result.history[20].loss = kNan;
  in.result.history[21].loss = kInfinity;
  in.result.evals[2].loss = kNan;
  in.result.final_loss = kNan;
  in.result.valid_loss = kInfinity;
  in.result.history[3].tokens_per_second = kInfinity;
  std::string html = written(in);
  EXPECT_EQ(offence(html), "");
  EXPECT_NE(html.find("2 reports had a loss"), std::string::npos);
  for (const char* part : {"\"nan", "nan\"", " nan", "\"inf", ">inf<", ">nan<"})
    EXPECT_EQ(html.find(part), std::string::npos) << part;
}

TEST(Report, LongRunsAndTextsStaySmall) {
  Input in = ordinary();
  StepReport step = in.result.history[0];
  for (int i = 0; i < 100000; ++i) {
    step.step = 500 + i;
    step.loss = 1.0 + std::sin(i);
    in.result.history.push_back(step);
  }
  std::string text;
  for (int i = 0; i < 400000; ++i) text += "é<";
  in.result.samples = {{text, text, text, text}};
  std::string html = written(in);
  EXPECT_EQ(offence(html), "");
  EXPECT_LT(html.size(), 400000u);
  EXPECT_NE(html.find("more bytes)"), std::string::npos);
}

TEST(Report, FullTrainingHasNoAdapterSettings) {
  Input in = ordinary();
  in.options.fine_tune_type = "full";
  std::string html = written(in);
  EXPECT_EQ(offence(html), "");
  EXPECT_EQ(html.find("<code>rank"), std::string::npos);
  EXPECT_NE(html.find("All weights"), std::string::npos);
}

TEST(ReportChart, ScalesForOddRanges) {
  using Points = std::vector<std::pair<double, double>>;
  for (const Points& points : {Points{{0, 0}, {1, 0}}, Points{{5, 3}}, Points{{1, -2}, {2, 7}},
                               Points{{1, 1e-12}, {2, 3e-12}}, Points{{1, 1e25}, {2, 1}},
                               Points{{1, -1e29}, {2, 1e29}}, Points{{1e9, 1}, {2e9, 1.0000001}}}) {
    for (bool log : {false, true}) {
      report::ChartStyle style;
      style.may_log = log;
      std::string svg = report::line_chart({{.name = "a", .css = "b", .points = points}}, style);
      EXPECT_EQ(offence(svg), "");
      EXPECT_EQ(svg.find(">-0<"), std::string::npos) << svg;
      EXPECT_GE(occurrences(svg, "class=\"tick\""), 3u) << svg;
      EXPECT_LE(occurrences(svg, "class=\"tick\""), 40u) << svg;
    }
  }
  EXPECT_EQ(report::line_chart({{.name = "a", .css = "b", .points = {{1, kNan}}}}, {}), "");
  EXPECT_EQ(report::line_chart({}, {}), "");
}

TEST(ReportText, Numbers) {
  using namespace report;
  EXPECT_EQ(count(0), "0");
  EXPECT_EQ(count(-1234567), "-1,234,567");
  EXPECT_EQ(count(999), "999");
  EXPECT_EQ(bytes(999), "999 B");
  EXPECT_EQ(bytes(15504000), "15.5 MB");
  EXPECT_EQ(bytes(std::numeric_limits<int64_t>::max()), "9.22 EB");
  // What is typed as a size has to hold them.
  EXPECT_EQ(bytes_up(999), "999 B");
  EXPECT_EQ(bytes_up(10'012'345), "10.1 MB");
  EXPECT_EQ(bytes_up(1'390'001), "1.40 MB");
  EXPECT_EQ(bytes_up(1'390'000), "1.39 MB");
  EXPECT_EQ(bytes_up(999'001), "1.00 MB");
  EXPECT_EQ(seconds(3.14159), "3.1 s");
  EXPECT_EQ(seconds(59.96), "1 min 00 s");
  EXPECT_EQ(seconds(3725), "1 h 02 min");
  EXPECT_EQ(number(2e-5), "2e-5");
  EXPECT_EQ(number(kNan), "not a number");
  EXPECT_EQ(shortened("aéé", 2), "a … (4 more bytes)");
  EXPECT_EQ(plural(1, "update"), "1 update");
}

TEST(Report, PreferencesHaveAnAccuracyAndNoPerplexity) {
  Input in = ordinary();
  EXPECT_NE(written(in).find("perplexity"), std::string::npos);
  for (EvalReport& e : in.result.evals)
    e.preference = {.present = true, .accuracy = 0.5 + 0.001 * static_cast<double>(e.step)};
  in.options.loss = "dpo";
  const std::string html = written(in);
  EXPECT_EQ(html.find("perplexity"), std::string::npos);
  EXPECT_NE(html.find("accuracy 50 % → 98 %"), std::string::npos);
  EXPECT_EQ(offence(html), "");
}

}  // namespace
}  // namespace wick
