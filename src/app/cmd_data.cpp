// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "app/format.h"
#include "app/options.h"
#include "app/plot.h"
#include "app/terminal.h"
#include "app/verbs.h"
#include "base/check.h"

namespace wick {

namespace {

struct Flags {
  ModelFlags model;
  DataFlags data;
  ChatFlags chat;
  OutputFlags output;
  std::string split, color = "auto";
  int64_t row = -1;
};

constexpr int kBuckets = 10, kBarColumns = 40;
constexpr size_t kIssuesShown = 20;

// A line break is shown and taken; other control characters are shown only.
std::string token_text(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '\n')
      out += "↵\n";
    else if (c == '\t')
      out += "→";
    else
      out += visible(std::string_view(&c, 1));
  }
  return out;
}

// Colours must not run over a line's end: some terminals would paint the rest of the line.
std::string painted(const std::string& text, const char* color) {
  std::string out = color;
  for (char c : text) out += c == '\n' ? std::string("\x1b[0m\n") + color : std::string(1, c);
  return out + "\x1b[0m";
}

void show_row(const DatasetRow& row, int64_t index, bool color, Output& out) {
  Json tokens = Json::array();
  int64_t trained = 0;
  for (const auto& token : row.tokens) {
    tokens.push_back({{"id", token.id}, {"text", token.text}, {"trained", token.trained}});
    trained += token.trained;
  }
  out.event({{"row", index},
             {"line", row.line},
             {"format", row.format},
             {"full_length", row.full_length},
             {"trained_tokens", trained},
             {"tokens", tokens}});
  if (out.json()) return;
  out.say(cat("row ", index, ", line ", row.line, ", ", row.format, ": ",
              plural(static_cast<int64_t>(row.tokens.size()), "token"), ", ", format_count(trained),
              " of them trained",
              row.full_length > static_cast<int64_t>(row.tokens.size())
                  ? cat(" (cut from ", format_count(row.full_length), ")")
                  : ""));
  out.say(color ? "green is trained, grey is not; two shades tell neighbours apart"
                : "[trained], not trained; a bar | ends each token that is not trained");
  out.say();
  std::string text;
  bool shade = false;
  for (const auto& token : row.tokens) {
    std::string shown = token_text(token.text);
    if (!color) {
      // The mark belongs to its token's line.
      bool breaks = shown.ends_with('\n');
      if (breaks) shown.pop_back();
      text += (token.trained ? "[" + shown + "]" : shown + "|") + (breaks ? "\n" : "");
      continue;
    }
    const char* paint = token.trained ? (shade ? "\x1b[1;30;42m" : "\x1b[1;30;102m")
                                      : (shade ? "\x1b[90m" : "\x1b[37m");
    text += painted(shown, paint);
    shade = !shade;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  out.result(text);
}

void show_summary(const Dataset& data, const std::string& split, Output& out) {
  DatasetStats s = data.stats();
  std::map<std::string, int64_t> formats;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < data.size(); ++i) {
    DatasetRow row = data.row(i);
    ++formats[row.format];
    lengths.push_back(static_cast<int64_t>(row.tokens.size()));
  }
  std::vector<Bucket> buckets = histogram(lengths, kBuckets);
  std::vector<DatasetIssue> issues = data.issues();
  double share =
      s.tokens > 0 ? static_cast<double>(s.trained_tokens) / static_cast<double>(s.tokens) : 0.0;

  Json buckets_json = Json::array(), issues_json = Json::array(), formats_json = Json::object();
  for (const auto& b : buckets)
    buckets_json.push_back({{"from", b.from}, {"to", b.to}, {"rows", b.count}});
  for (const auto& issue : issues)
    issues_json.push_back(
        {{"kind", issue.kind}, {"file", issue.file}, {"line", issue.line}, {"what", issue.what}});
  for (const auto& [name, count] : formats) formats_json[name] = count;
  out.event({{"event", "data"},
             {"file", data.file()},
             {"split", split},
             {"rows", s.rows},
             {"rows_read", s.rows_read},
             {"formats", formats_json},
             {"tokens", s.tokens},
             {"trained_tokens", s.trained_tokens},
             {"trained_share", share},
             {"shortest", s.shortest},
             {"median", s.median},
             {"p90", s.p90},
             {"longest", s.longest},
             {"histogram", buckets_json},
             {"issues", issues_json}});
  if (out.json()) return;

  std::string kinds;
  for (const auto& [name, count] : formats)
    kinds +=
        cat(kinds.empty() ? "" : ", ", formats.size() > 1 ? format_count(count) + " " : "", name);
  out.result(cat("file     ", data.file()));
  out.result(cat("rows     ", format_count(s.rows),
                 s.rows_read > s.rows ? cat(" of ", format_count(s.rows_read), " read") : "", " (",
                 kinds, ")"));
  out.result(cat("tokens   ", format_count(s.tokens), ", ", format_count(s.trained_tokens),
                 " of them trained (", percent(share), ")"));
  out.result(cat("length   ", format_count(s.shortest), " to ", format_count(s.longest),
                 " tokens, median ", format_count(s.median), ", 90 % within ",
                 format_count(s.p90)));
  int64_t most = 1;
  size_t width = 0;
  auto label = [](const Bucket& b) {
    return b.from == b.to ? format_count(b.from) : format_count(b.from) + "–" + format_count(b.to);
  };
  for (const auto& b : buckets) {
    most = std::max(most, b.count);
    width = std::max(width, columns_of(label(b)));
  }
  out.result();
  for (const auto& b : buckets) {
    std::string name = label(b);
    name.insert(0, width - columns_of(name), ' ');
    out.result(
        cat("  ", name, "  ",
            bar(static_cast<double>(b.count) / static_cast<double>(most), kBarColumns, uses_utf8()),
            " ", format_count(b.count)));
  }
  out.result();
  if (issues.empty()) out.result("no problems found");
  if (!issues.empty()) out.result(plural(static_cast<int64_t>(issues.size()), "problem"));
  for (size_t i = 0; i < std::min(issues.size(), kIssuesShown); ++i)
    out.result("  " + issue_text(issues[i]));
  if (issues.size() > kIssuesShown)
    out.result(cat("  and ", issues.size() - kIssuesShown, " more; --json has all"));
}

int run(const Args& args, const Flags& flags) {
  check_data_path(args, flags.data.data);
  Output out(flags.output.json, flags.output.quiet);
  Engine engine(EngineOptions{.device = "cpu", .threads = 1});
  Model model = Model::load(engine, flags.model.options());
  DatasetOptions options = flags.data.options;
  options.system_prompt = flags.chat.system_prompt;
  options.chat_template_config = flags.chat.chat_template_config;
  options.date = flags.chat.date;
  Dataset data = Dataset::load(model, flags.data.data, flags.split, options);
  if (!args.given("row")) {
    show_summary(data, flags.split, out);
    return kDone;
  }
  if (flags.row >= data.size())
    throw UsageError(
        cat("--row got ", flags.row, ", and ", data.file(), " has rows 0 to ", data.size() - 1));
  show_row(data.row(flags.row), flags.row, uses_color(flags.color, stdout), out);
  return kDone;
}

}  // namespace

std::function<int()> declare_data(Args& args) {
  auto flags = std::make_shared<Flags>();
  flags->split = "train";
  args.summary = "look into a data set: lengths, problems, which tokens carry loss";
  args.json =
      "One object: event (data), file, split, rows, rows_read, formats, tokens, trained_tokens, "
      "trained_share, shortest, median, p90, longest, histogram, issues. With --row: row, line, "
      "format, full_length, trained_tokens, tokens (id, text, trained).";
  args.examples = {
      {"wick data --data data", "a summary of data/train.jsonl"},
      {"wick data --data data --row 0", "every token of the first row, trained ones in colour"},
      {"wick data --model M --data data --split valid --json", "for a program"},
  };
  add_data_flags(args, flags->data);
  args.text("--split", flags->split, "NAME", "train, valid or test.")
      .one_of({"train", "valid", "test"});
  args.integer("--row", flags->row, "N", "Show every token of row N, counted from 0.", {.min = 0})
      .shown("");
  args.text("--color", flags->color, "WHEN", "auto, always or never.")
      .one_of({"auto", "always", "never"});
  args.group("Model");
  args.text("--model", flags->model.model, "FOLDER", "Whose tokenizer and chat template.")
      .shown("the small model inside wick")
      .path();
  add_chat_flags(args, flags->chat);
  add_output_flags(args, flags->output);
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
