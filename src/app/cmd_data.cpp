// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "app/format.h"
#include "app/options.h"
#include "app/plot.h"
#include "app/signals.h"
#include "app/terminal.h"
#include "app/train_flags.h"
#include "app/train_view.h"
#include "app/verbs.h"
#include "base/check.h"

namespace wick {

namespace {

struct Flags {
  ModelFlags model;
  DeviceFlags device;
  DataFlags data;
  ChatFlags chat;
  OutputFlags output;
  TrainOptions train;  // of the estimate
  std::string split, color = "auto", fix;
  int64_t row = -1;
  bool strict = false, estimate = true, overwrite = false;
};

constexpr int kBuckets = 10, kBarColumns = 40;
constexpr int64_t kShownOfKind = 20;

// A line break is shown and taken; other control characters are shown only.
std::string token_text(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of("\n\t", begin), text.size());
    out += visible(std::string_view(text).substr(begin, end - begin));
    if (end < text.size()) out += text[end] == '\n' ? sign("↵\n", "\\n\n") : sign("→", "\\t");
    begin = end + 1;
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
             {"rejected_from", row.second > 0 ? Json(row.second) : Json()},
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
  for (size_t i = 0; i < row.tokens.size(); ++i) {
    const DatasetToken& token = row.tokens[i];
    if (row.second > 0 && (i == 0 || i == static_cast<size_t>(row.second)))
      text += i == 0 ? "-- chosen\n" : cat(text.ends_with('\n') ? "" : "\n", "-- rejected\n");
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

Json histogram_json(const std::vector<Bucket>& buckets) {
  Json json = Json::array();
  for (const Bucket& b : buckets)
    json.push_back({{"from", b.from}, {"to", b.to}, {"rows", b.count}});
  return json;
}

void show_histogram(const std::vector<Bucket>& buckets, Output& out) {
  int64_t most = 1;
  size_t width = 0;
  auto label = [](const Bucket& b) {
    return b.from == b.to ? format_count(b.from)
                          : format_count(b.from) + sign("–", "-") + format_count(b.to);
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
}

void show_split(const DataSplit& s, int64_t limit, Output& out) {
  const std::vector<Bucket> buckets = histogram(s.lengths, kBuckets);
  const double share =
      s.tokens > 0 ? static_cast<double>(s.trained_tokens) / static_cast<double>(s.tokens) : 0.0;
  const std::string files = joined(s.files, ", ");
  out.event({{"event", "data"},
             {"file", files},
             {"split", s.split},
             {"rows", s.rows},
             {"rows_read", s.rows_read},
             {"rows_over_limit", s.rows_over_limit},
             {"formats", s.formats},
             {"tokens", s.tokens},
             {"trained_tokens", s.trained_tokens},
             {"trained_share", share},
             {"shortest", s.shortest},
             {"median", s.median},
             {"p90", s.p90},
             {"longest", s.longest},
             {"histogram", histogram_json(buckets)},
             {"written", s.written.empty() ? Json() : Json(s.written)},
             {"rows_written", s.rows_written}});
  if (out.json()) return;
  std::string kinds;
  for (const auto& [name, count] : s.formats)
    kinds +=
        cat(kinds.empty() ? "" : ", ", s.formats.size() > 1 ? format_count(count) + " " : "", name);
  out.result(cat(s.split, std::string(9 - std::min<size_t>(8, s.split.size()), ' '), files));
  out.result(cat("rows     ", format_count(s.rows),
                 s.rows_read > s.rows ? cat(" of ", format_count(s.rows_read), " read") : "",
                 kinds.empty() ? "" : cat(" (", kinds, ")")));
  out.result(cat("tokens   ", format_count(s.tokens), ", ", format_count(s.trained_tokens),
                 " of them trained (", percent(share), ")"));
  out.result(cat("length   ", format_count(s.shortest), " to ", format_count(s.longest),
                 " tokens, median ", format_count(s.median), ", 90 % within ", format_count(s.p90),
                 s.rows_over_limit > 0 ? cat("; ", format_count(s.rows_over_limit),
                                             " over the limit of ", format_count(limit))
                                       : ""));
  show_histogram(buckets, out);
}

void show_finding(const DatasetIssue& f, Output& out) {
  if (!out.json()) return;
  out.event({{"event", "finding"},
             {"kind", f.kind},
             {"file", f.file},
             {"line", f.line},
             {"what", f.what}});
}

int64_t findings_of(const DataCheck& check) {
  int64_t all = 0;
  for (const auto& [kind, count] : check.counts) all += count;
  return all;
}

void show_findings(const DataCheck& check, Output& out) {
  if (out.json()) return;
  const int64_t all = findings_of(check);
  out.result(all == 0 ? "no problems found" : plural(all, "problem"));
  for (const auto& [kind, count] : check.counts) {
    out.result(cat("  ", kind, " (", format_count(count), ")"));
    int64_t shown = 0;
    for (const DatasetIssue& f : check.findings) {
      if (f.kind != kind || shown == kShownOfKind) continue;
      ++shown;
      out.result("    " + issue_text(f));
    }
    if (count > shown)
      out.result(cat("    and ", format_count(count - shown), " more; --json has all"));
  }
}

// What training would take, by the trainer's own forecast.
Json show_estimate(Model& model, const TrainOptions& options, Output& out) {
  try {
    const Forecast f = Trainer(model, options).forecast();
    const std::string loss = options.loss == "sft" ? "" : cat(" with --loss ", options.loss);
    const double seconds = f.total_seconds;
    if (!out.json()) {
      out.result(cat("training ", plural(f.updates, "update"), loss,
                     seconds > 0 ? cat(", about ", format_seconds(seconds)) : "", ", ",
                     format_bytes(f.peak_bytes)));
      if (f.packed_fill > 0) out.result("packing  token slots used: " + packing_text(f));
    }
    return {{"loss", options.loss},
            {"updates", f.updates},
            {"seconds", seconds > 0 ? Json(seconds) : Json()},
            {"peak_bytes", f.peak_bytes},
            {"packed_fill", f.packed_fill},
            {"padded_fill", f.padded_fill},
            {"sorted_fill", f.sorted_fill}};
  } catch (const Error& e) {
    if (!out.json()) out.result(cat("training would refuse this: ", visible(e.what())));
    return {{"refused", e.what()}};
  }
}

// Rows need the model's config, tokenizer and template; its weights matter to the estimate alone.
Model load_model(Engine& engine, const Flags& flags, bool& has_weights) {
  ModelOptions options = flags.model.options();
  has_weights = true;
  try {
    return Model::load(engine, options);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kNotFound) throw;
    options.random_weights = true;
    try {
      Model model = Model::load(engine, options);
      has_weights = false;
      return model;
    } catch (const Error&) {
    }
    throw;  // the first, which says what else is missing
  }
}

void show_cleaned(const DataCheck& check, Output& out) {
  for (const DataSplit& split : check.splits) {
    if (split.written.empty())
      out.say(cat("no row of the ", split.split, " split is left, and no file of it is written"));
    else if (!out.json())
      out.result(cat("cleaned  ", split.written, ", ", plural(split.rows_written, "row")));
  }
  if (out.json()) return;
  for (const std::string& fix : check.fixes) out.result("  " + fix);
}

int run(const Args& args, const Flags& flags) {
  if (flags.overwrite && flags.fix.empty())
    throw UsageError("--overwrite is for the folder that --fix names");
  const std::vector<DataSource> sources = flags.data.sources(args);
  Output out(flags.output.json, flags.output.quiet);
  Engine engine(flags.device.options());
  bool has_weights = true;
  Model model = load_model(engine, flags, has_weights);
  DatasetOptions options = flags.data.options;
  options.system_prompt = flags.chat.system_prompt;
  options.chat_template_config = flags.chat.chat_template_config;
  options.date = flags.chat.date;
  if (args.given("show")) {
    options.skip_unreadable = true;
    Dataset data =
        Dataset::load(model, sources, flags.split.empty() ? "train" : flags.split, options);
    for (const DatasetIssue& issue : data.issues())
      if (issue.kind == "unreadable") out.say("left out: " + issue_text(issue));
    if (flags.row >= data.size())
      throw UsageError(
          cat("--show got ", flags.row, ", and ", data.file(), " has rows 0 to ", data.size() - 1));
    show_row(data.row(flags.row), flags.row, uses_color(flags.color, stdout), out);
    return kDone;
  }
  std::vector<std::string> splits = {"train", "valid", "test"};
  if (!flags.split.empty()) splits = {flags.split};
  DataCheck check;
  const auto on_finding = [&](const DatasetIssue& finding) { show_finding(finding, out); };
  if (flags.fix.empty()) {
    check = check_data(model, sources, splits, options, {}, {}, false, on_finding);
  } else {
    const StopSignal stop;
    check = check_data(
        model, sources, splits, options, flags.fix, [&] { return stop.asked(); }, flags.overwrite,
        on_finding);
  }
  const int64_t limit = std::min(options.max_seq_length, model.info().context);
  for (const DataSplit& split : check.splits) show_split(split, limit, out);
  Json summary = {{"event", "summary"}};
  const bool trains = std::any_of(check.splits.begin(), check.splits.end(),
                                  [](const DataSplit& s) { return s.split == "train"; });
  if (flags.estimate && trains && !has_weights)
    out.say("no estimate of training: the model's weights are not in its folder");
  if (flags.estimate && trains && has_weights) {
    TrainOptions train = flags.train;
    train.data = sources.front().path;
    train.data_sources = sources;
    train.dataset = options;
    if (epochs_beat_iters(args)) train.iters = 0;
    train.seed = static_cast<uint64_t>(flags.model.seed);
    for (const DataSplit& s : check.splits)
      if (s.split == "train" && s.formats.size() == 1 && s.formats.contains("preference"))
        train.loss = "dpo";
    summary["training"] = show_estimate(model, train, out);
    if (!out.json()) out.result();
  }
  show_findings(check, out);
  summary["kinds"] = check.counts;
  summary["findings"] = findings_of(check);
  summary["fixes"] = check.fixes;
  if (!flags.fix.empty()) show_cleaned(check, out);
  out.event(summary);
  if (!flags.fix.empty() && std::all_of(check.splits.begin(), check.splits.end(),
                                        [](const DataSplit& s) { return s.written.empty(); }))
    fail(ErrorCode::kInvalidArgument, "--fix ", flags.fix,
         ": no row is left, and nothing is written; the findings say why");
  return flags.strict && findings_of(check) > 0 ? kFailed : kDone;
}

}  // namespace

std::function<int()> declare_data(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "check a data set: lengths, problems, which tokens carry loss";
  args.details =
      "Reads every row of every split as training would, and names all that is wrong with file and "
      "line, rows that cannot be read included. docs/data.md lists the kinds of findings.";
  args.json =
      "One object per finding, as it is found: event (finding), kind, file, line (0: the whole "
      "file), what. Then one per split: event (data), file, split, rows, rows_read, "
      "rows_over_limit, formats, tokens, trained_tokens, trained_share, shortest, median, p90, "
      "longest, histogram, written, rows_written. At the end one with event (summary), training "
      "(loss, updates, seconds, peak_bytes, packed_fill, padded_fill, sorted_fill, or refused), "
      "kinds, findings, fixes. With --show: row, line, format, full_length, trained_tokens, "
      "rejected_from, tokens (id, text, trained).";
  args.examples = {
      {"wick data --data data", "all splits: lengths, problems, what training would take"},
      {"wick data --data data --show 0", "every token of the first row, trained ones in colour"},
      {"wick data --data data --strict --quiet", "for a script: exit code 1 if anything is found"},
      {"wick data --data data --fix clean", "a cleaned copy in clean/"},
  };
  add_data_flags(args, flags->data);
  args.text("--split", flags->split, "NAME", "Only train, valid or test.")
      .one_of({"train", "valid", "test"})
      .shown("all");
  args.integer("--show,--row", flags->row, "N", "Show every token of row N, counted from 0.",
               {.min = 0})
      .shown("");
  args.text("--color", flags->color, "WHEN", "auto, always or never.")
      .one_of({"auto", "always", "never"});
  args.flag("--strict", flags->strict, "Exit code 1 if anything is found.");
  args.text("--fix", flags->fix, "FOLDER",
            "Write a cleaned copy as JSON lines: without rows that are unreadable, unusable, "
            "repeated, in another split as well or without trained tokens; characters repaired.")
      .path();
  args.flag("--overwrite", flags->overwrite,
            "Replace the data set that --fix's folder has; with --split, that split of it.");
  TrainOptions& o = flags->train;
  args.group("Estimate");
  args.flag("--estimate", flags->estimate, "Say what training on it would take.");
  args.integer("--batch-size", o.batch_size, "N", "Rows of a batch.", {.min = 1});
  args.integer("--grad-accumulation-steps", o.grad_accumulation_steps, "N",
               "Batches that form one update.", {.min = 1});
  add_epochs_flag(args, o);
  args.integer("--iters", o.iters, "N", "Number of batches, instead of epochs.", {.min = 1})
      .shown("");
  args.integer("--rank,--lora-rank", o.rank, "N", "Rank of the adapter.", {.min = 1, .max = 65536});
  args.list("--targets", o.targets, "NAMES", "Linears that get an adapter.");
  args.integer("--num-layers", o.num_layers, "N", "Only the last N blocks; -1 for all.",
               {.min = -1})
      .shown("-1");
  args.flag("--packing", o.packing, "Several rows in one sequence, each seeing only itself.");
  args.number("--val-split", o.val_split, "X", "Held-out share, or number, of the rows.",
              {.min = 0.0})
      .shown("0");
  add_model_flags(args, flags->model, false);
  add_chat_flags(args, flags->chat);
  add_device_flags(args, flags->device);
  add_output_flags(args, flags->output);
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
