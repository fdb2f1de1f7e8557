// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "app/finite.h"
#include "app/format.h"
#include "app/options.h"
#include "app/signals.h"
#include "app/terminal.h"
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
  EvalOptions eval;
  std::string split;
  std::vector<std::string> compare;
  bool per_example = false;
};

constexpr size_t kIssuesShown = 5;

std::vector<DataSource> unweighted_sources(const Args& args, const DataFlags& data) {
  std::vector<DataSource> sources = data.sources(args);
  for (size_t i = 0; i < sources.size(); ++i)
    if (sources[i].path != data.data[i])
      throw UsageError(cat("--data ", data.data[i],
                           ": a weight is for epochs of training, and each "
                           "row is evaluated once; leave ",
                           data.data[i].substr(sources[i].path.size()), " out"));
  return sources;
}

std::string choose_split(const Flags& flags, const std::vector<DataSource>& sources) {
  if (!flags.split.empty()) return flags.split;
  for (const char* split : {"test", "valid"})
    if (Dataset::has_split(sources, split)) return split;
  return "test";
}

std::string row_words(const std::string& side) {
  return side.empty() ? "row " : side == "a" ? "A row " : "B row ";
}

// Of a comparison `side` is "a" or "b", else "".
void show_example(const ExampleResult& e, const std::string& side, Output& out) {
  Json object = {{"index", e.index}, {"line", e.line}, {"loss", e.loss}, {"tokens", e.tokens}};
  if (!side.empty()) object["side"] = side;
  if (e.has_match) {
    object["exact_match"] = e.exact_match;
    object["expected"] = e.expected;
    object["answer"] = e.answer;
  }
  if (e.is_pair) {
    object["chosen_logp"] = e.chosen_logp;
    object["rejected_logp"] = e.rejected_logp;
    object["rejected_tokens"] = e.rejected_tokens;
  }
  out.event(object);
  if (out.json()) return;
  std::string line = cat(row_words(side), e.index, "  line ", e.line, "  loss ", fixed(e.loss, 4),
                         "  ", plural(e.tokens, "token"));
  if (e.has_match) line += e.exact_match ? "  exact" : "  different";
  if (e.is_pair)
    line += cat("  log p ", fixed(e.chosen_logp, 2), " and ", fixed(e.rejected_logp, 2));
  out.result(line);
  if (!e.has_match || e.exact_match) return;
  out.result("    wanted  " + visible(e.expected));
  out.result("    got     " + visible(e.answer));
}

void show_choice(const ChoiceRow& row, const std::string& side, Output& out) {
  Json object = {{"index", row.index},
                 {"line", row.line},
                 {"answer", row.answer},
                 {"chosen", row.chosen},
                 {"chosen_by_length", row.chosen_by_length},
                 {"logp", row.logp}};
  if (!side.empty()) object["side"] = side;
  out.event(object);
  if (!out.json())
    out.result(cat(row_words(side), row.index, "  line ", row.line, "  answer ", row.answer,
                   "  chosen ", row.chosen, "  by length ", row.chosen_by_length));
}

// " ± …", or nothing where one row leaves the error unknown (null in JSON).
std::string plus_minus(double error, const std::string& text) {
  return std::isnan(error) ? "" : sign(" ± ", " +- ") + text;
}

std::string share_text(double share, double error) {
  return percent(share) + plus_minus(error, percent(error));
}

Json choices_json(const ChoiceResult& r) {
  return {{"rows", r.rows},
          {"accuracy", r.accuracy},
          {"accuracy_stderr", r.accuracy_stderr},
          {"accuracy_by_length", r.by_length},
          {"accuracy_by_length_stderr", r.by_length_stderr},
          {"chance", r.chance},
          {"seconds", r.seconds}};
}

Json preference_json(const PreferenceResult& p) {
  if (p.pairs == 0) return nullptr;
  Json j = {{"pairs", p.pairs},
            {"accuracy", p.accuracy},
            {"accuracy_stderr", p.accuracy_stderr},
            {"accuracy_by_length", p.by_length},
            {"accuracy_by_length_stderr", p.by_length_stderr},
            {"margin", p.margin},
            {"margin_stderr", p.margin_stderr}};
  if (!p.has_reward) return j;
  j["reward_accuracy"] = p.reward_accuracy;
  j["reward_accuracy_stderr"] = p.reward_accuracy_stderr;
  j["reward_margin"] = p.reward_margin;
  j["reward_margin_stderr"] = p.reward_margin_stderr;
  return j;
}

Json result_json(const EvalResult& r) {
  return {{"preference", preference_json(r.preference)},
          {"loss", r.loss},
          {"loss_stderr", r.loss_stderr},
          {"perplexity", r.perplexity},
          {"perplexity_stderr", r.perplexity_stderr},
          {"rows", r.rows},
          {"tokens", r.tokens},
          {"match_rows", r.match_rows},
          {"matches", r.matches},
          {"exact_match", r.match_rows > 0 ? Json(r.exact_match) : Json()},
          {"exact_match_stderr", r.match_rows > 0 ? Json(r.exact_match_stderr) : Json()},
          {"seconds", r.seconds}};
}

void show_choices(const ChoiceResult& r, Output& out) {
  out.result(cat("accuracy     ", share_text(r.accuracy, r.accuracy_stderr), " (chance ",
                 percent(r.chance), ")"));
  out.result(cat("by length    ", share_text(r.by_length, r.by_length_stderr)));
}

void show_preference(const PreferenceResult& p, Output& out) {
  if (p.pairs == 0) return;
  auto number = [](double mean, double error) {
    return fixed(mean, 3) + plus_minus(error, fixed(error, 3));
  };
  out.result(cat("chosen       likelier in ", share_text(p.accuracy, p.accuracy_stderr), " of ",
                 plural(p.pairs, "pair"), ", per token in ",
                 share_text(p.by_length, p.by_length_stderr)));
  out.result(cat("margin       ", number(p.margin, p.margin_stderr), " of log p"));
  if (p.has_reward)
    out.result(cat("reward       higher in ",
                   share_text(p.reward_accuracy, p.reward_accuracy_stderr), ", margin ",
                   number(p.reward_margin, p.reward_margin_stderr),
                   " (log p against the model alone)"));
}

void show_result(const EvalResult& r, Output& out) {
  out.result(
      cat("loss         ", fixed(r.loss, 4), plus_minus(r.loss_stderr, fixed(r.loss_stderr, 4))));
  out.result(cat("perplexity   ", general(r.perplexity, 5),
                 plus_minus(r.loss_stderr, general(r.perplexity_stderr, 2))));
  if (r.match_rows > 0)
    out.result(cat("exact match  ", share_text(r.exact_match, r.exact_match_stderr), " (",
                   format_count(r.matches), " of ", format_count(r.match_rows), ")"));
  show_preference(r.preference, out);
}

Json difference_json(const PairedDifference& d) {
  return {{"difference", d.difference},
          {"low", d.low},
          {"high", d.high},
          {"p", d.p},
          {"rows", d.rows},
          {"a_higher", d.a_higher},
          {"b_higher", d.b_higher}};
}

void show_difference(const char* name, const PairedDifference& d, bool share, Output& out) {
  auto number = [&](double x) { return cat(x > 0 ? "+" : "", share ? percent(x) : fixed(x, 4)); };
  // Of fewer rows no split is rarer than one in twenty, and draws from them know no others.
  constexpr int64_t kLeastRows = 6;
  const bool certain = d.low > 0 || d.high < 0;
  out.result(cat(name, number(d.difference), " (95 %: ", number(d.low), " to ", number(d.high),
                 "), higher in ", plural(d.b_higher, "row"), ", lower in ",
                 format_count(d.a_higher), ", sign test p = ", general(d.p, 2),
                 d.rows < kLeastRows ? "; too few rows to tell"
                 : certain           ? ""
                                     : "; may be chance"));
}

// Everything that is done for one model: two of these are compared.
struct Evaluated {
  EvalResult rows;
  ChoiceResult choices;
};

class Evaluation {
 public:
  Evaluation(const Args& args, const Flags& flags, Output& out)
      : flags_(flags),
        out_(out),
        sources_(unweighted_sources(args, flags.data)),
        engine_(flags.device.options()),
        model_(Model::load(engine_, flags.model.options())) {
    warn_person(model_.info().adapter_note, out.quiet());
    options_ = flags.data.options;
    options_.system_prompt = flags.chat.system_prompt;
    options_.chat_template_config = flags.chat.chat_template_config;
    options_.date = flags.chat.date;
    options_.files_as_any_split = true;
    split_ = choose_split(flags, sources_);
    for (const DataSource& s : sources_)
      if (sources_.size() > 1 && std::filesystem::is_directory(s.path) &&
          !Dataset::has_split(s.path, split_))
        out.say(cat(s.path, ": has no ", split_, " file and is left out"));
    choices_ = has_choices(sources_, split_);
    if (!choices_) load();
  }

  int one() {
    const Evaluated e = evaluate_model();
    Json summary = {{"event", "eval"}, {"split", split_}, {"file", file()}};
    summary.update(choices_ ? choices_json(e.choices) : result_json(e.rows));
    out_.event(summary);
    if (!out_.json()) {
      head();
      if (!model_.info().adapter_path.empty())
        out_.say("adapter      " + model_.info().adapter_path);
      show(e);
      out_.say(cat("time         ", format_seconds(choices_ ? e.choices.seconds : e.rows.seconds)));
    }
    expect_numbers(e);
    return kDone;
  }

  int compare() {
    auto attach = [&](const std::string& name) {
      if (name == "base")
        model_.detach_adapter();
      else
        model_.attach_adapter(name);
    };
    attach(flags_.compare[1]);  // what is wrong with it is said before the work on the first
    Evaluated results[2];
    for (size_t i = 0; i < 2; ++i) {
      const std::string& name = flags_.compare[i];
      attach(name);
      warn_person(model_.info().adapter_note, out_.quiet());
      results[i] = evaluate_model(i == 0 ? "a" : "b");
      if (i == 0 && !out_.json()) head();
      out_.result(cat(i == 0 ? "A            " : "B            ", name));
      show(results[i]);
    }
    const auto seed = static_cast<uint64_t>(flags_.model.seed);
    Json summary = {{"event", "compare"}, {"split", split_}, {"file", file()}};
    for (size_t i = 0; i < 2; ++i) {
      Json& side = summary[i == 0 ? "a" : "b"];
      side = choices_ ? choices_json(results[i].choices) : result_json(results[i].rows);
      side["adapter"] = flags_.compare[i];
    }
    if (!out_.json()) out_.result("B - A");
    auto report = [&](const char* key, const char* name, const PairedDifference& d, bool share) {
      summary[key] = difference_json(d);
      if (!out_.json()) show_difference(name, d, share, out_);
    };
    if (choices_) {
      report("accuracy", "accuracy     ",
             compare_choices(results[0].choices, results[1].choices, seed), true);
    } else {
      report("loss", "loss         ", compare_losses(results[0].rows, results[1].rows, seed),
             false);
      if (results[0].rows.match_rows > 0)
        report("exact_match", "exact match  ",
               compare_matches(results[0].rows, results[1].rows, seed), true);
      if (results[0].rows.preference.pairs > 0)
        report("preference", "chosen       ",
               compare_preferences(results[0].rows, results[1].rows, seed), true);
    }
    out_.event(summary);
    for (const Evaluated& e : results) expect_numbers(e);
    return kDone;
  }

 private:
  void load() {
    data_.emplace(Dataset::load(model_, sources_, split_, options_));
    std::vector<DatasetIssue> issues = data_->issues();
    for (size_t i = 0; i < std::min(issues.size(), kIssuesShown); ++i)
      out_.say(issue_text(issues[i]));
    if (issues.size() > kIssuesShown)
      out_.say(cat("and ", issues.size() - kIssuesShown, " more; wick data shows them"));
  }

  Evaluated evaluate_model(const std::string& side = {}) {
    EvalOptions eval = flags_.eval;
    const StopSignal stop;
    eval.should_stop = [&] { return stop.asked(); };
    eval.on_progress = [&](int64_t done, int64_t rows) {
      out_.live(cat("evaluated ", format_count(done), "/", format_count(rows), " rows"));
    };
    Evaluated e;
    if (choices_)
      e.choices = evaluate_choices(model_, sources_, split_, options_, eval);
    else
      e.rows = evaluate(model_, *data_, eval);
    out_.end_live();
    if (!flags_.per_example) return e;
    for (const ChoiceRow& row : e.choices.examples) show_choice(row, side, out_);
    for (const ExampleResult& row : e.rows.examples) show_example(row, side, out_);
    return e;
  }

  void expect_numbers(const Evaluated& e) const {
    expect_finite(e.choices, file());
    expect_finite(e.rows, file());
  }

  std::string file() const { return data_ ? data_->file() : sources_.front().path; }

  void head() const { out_.say("model        " + describe_model(model_.info())); }

  void show(const Evaluated& e) const {
    if (out_.json()) return;
    out_.result(cat(
        "data         ", file(), ", ",
        choices_ ? plural(e.choices.rows, "question")
                 : cat(plural(e.rows.rows, "row"), ", ", plural(e.rows.tokens, "trained token"))));
    if (choices_)
      show_choices(e.choices, out_);
    else
      show_result(e.rows, out_);
  }

  const Flags& flags_;
  Output& out_;
  std::vector<DataSource> sources_;
  Engine engine_;
  Model model_;
  DatasetOptions options_;
  std::string split_;
  bool choices_ = false;
  std::optional<Dataset> data_;
};

int run(const Args& args, const Flags& flags) {
  if (flags.eval.max_rows == 0)
    throw UsageError("--max-rows (--limit) got 0, wanted a number of rows, or -1 for all");
  if (!flags.compare.empty() && flags.compare.size() != 2)
    throw UsageError(cat("--compare got ", flags.compare.size(),
                         " names, wanted two: adapters, or base for the model alone"));
  if (!flags.compare.empty() && args.given("adapter-path"))
    throw UsageError("--compare names its adapters itself; leave --adapter-path out");
  Output out(flags.output.json, flags.output.quiet);
  Evaluation evaluation(args, flags, out);
  return flags.compare.empty() ? evaluation.one() : evaluation.compare();
}

}  // namespace

std::function<int()> declare_eval(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "loss, perplexity, exact match and multiple choice on held-out rows";
  args.details =
      "Loss is the mean over trained tokens. For chat and completion rows the last assistant turn "
      "is generated greedily from what stands before it, and counts as exact when its text is the "
      "row's: special tokens left out, white space at both ends aside, everything else to the "
      "letter. An answer longer than --max-tokens counts as different. Rows of text, rows that "
      "were cut and, with --no-mask-prompt, all rows have a loss only. Rows with choices "
      "({\"question\", \"choices\", \"answer\"}) are answered by likelihood: the choice with the "
      "highest log-probability, and by length the one with the highest per character. Of "
      "preferences ({\"prompt\", \"chosen\", \"rejected\"}) the loss is the chosen answers', and "
      "the share of pairs whose chosen answer is likelier is given; with an adapter also the share "
      "in which it prefers that answer more than the model alone does. --compare "
      "evaluates two adapters on the same rows and says whether they differ by more than chance: "
      "the "
      "mean difference B - A with an interval of 95 % (bootstrap over rows, from --seed) and a "
      "sign "
      "test. Errors behind ± are standard errors over rows. Where a row's loss is no finite "
      "number, the exit code is 1.";
  args.json =
      "With --per-example one object per row: index, line, loss, tokens, and where it applies "
      "exact_match, expected, answer; with --compare side (a, b). At the end one with event "
      "(eval), split, file, loss, "
      "loss_stderr, perplexity, perplexity_stderr, rows, tokens, match_rows, matches, exact_match, "
      "exact_match_stderr, seconds, preference (pairs, accuracy, accuracy_by_length, margin, "
      "reward_accuracy, reward_margin, their _stderr); for choices accuracy, accuracy_by_length, "
      "their _stderr, "
      "chance. "
      "With --compare event (compare), a, b, and per figure (loss, exact_match, preference, "
      "accuracy) difference, "
      "low, high, p, rows, a_higher, b_higher.";
  args.examples = {
      {"wick eval --data data --adapter-path out", "how good is the adapter on data/test.jsonl?"},
      {"wick eval --model M --data data --split valid --limit 100", "a part of valid.jsonl"},
      {"wick eval --data data --compare base out", "is the adapter better than the model alone?"},
      {"wick eval --data data --adapter-path out --per-example --json", "every row, for a program"},
  };
  add_data_flags(args, flags->data, /*weighted=*/false);
  args.text("--split", flags->split, "NAME", "train, valid or test.")
      .one_of({"train", "valid", "test"})
      .shown("test, else valid");
  args.integer("--max-rows,--limit", flags->eval.max_rows, "N",
               "Only the first N rows; -1 for all.", {.min = -1});
  args.group("Evaluation");
  args.repeat("--compare", flags->compare, "A B",
              "Two adapters (or base, the model alone) on the same rows.")
      .takes_all();
  args.flag("--per-example", flags->per_example, "Show every row, not just the sum.");
  args.flag("--exact-match", flags->eval.exact_match, "Generate answers and compare them.");
  args.integer("--batch-size", flags->eval.batch_size, "N",
               "Rows that are scored and answered side by side.", {.min = 1});
  args.integer("--max-tokens,-m", flags->eval.max_tokens, "N", "Longest answer, in tokens.",
               {.min = 1});
  add_model_flags(args, flags->model, true);
  add_chat_flags(args, flags->chat);
  add_device_flags(args, flags->device);
  add_output_flags(args, flags->output);
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
