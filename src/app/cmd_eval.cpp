// SPDX-License-Identifier: Apache-2.0
#include "app/format.h"
#include "app/options.h"
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
  bool per_example = false;
};

constexpr size_t kIssuesShown = 5;

std::string choose_split(const Flags& flags) {
  if (!flags.split.empty()) return flags.split;
  for (const char* split : {"test", "valid"})
    if (Dataset::has_split(flags.data.data, split)) return split;
  return "test";
}

void show_example(const ExampleResult& e, Output& out) {
  Json object = {{"index", e.index}, {"line", e.line}, {"loss", e.loss}, {"tokens", e.tokens}};
  if (e.has_match) {
    object["exact_match"] = e.exact_match;
    object["expected"] = e.expected;
    object["answer"] = e.answer;
  }
  out.event(object);
  if (out.json()) return;
  std::string line = cat("row ", e.index, "  line ", e.line, "  loss ", fixed(e.loss, 4), "  ",
                         plural(e.tokens, "token"));
  if (e.has_match) line += e.exact_match ? "  exact" : "  different";
  out.result(line);
  if (!e.has_match || e.exact_match) return;
  out.result("    wanted  " + visible(e.expected));
  out.result("    got     " + visible(e.answer));
}

int run(const Args& args, const Flags& flags) {
  check_data_path(args, flags.data.data);
  Output out(flags.output.json, flags.output.quiet);
  Engine engine(flags.device.options());
  Model model = Model::load(engine, flags.model.options());
  DatasetOptions options = flags.data.options;
  options.system_prompt = flags.chat.system_prompt;
  options.chat_template_config = flags.chat.chat_template_config;
  options.date = flags.chat.date;
  std::string split = choose_split(flags);
  Dataset data = Dataset::load(model, flags.data.data, split, options);
  std::vector<DatasetIssue> issues = data.issues();
  for (size_t i = 0; i < std::min(issues.size(), kIssuesShown); ++i) out.say(issue_text(issues[i]));
  if (issues.size() > kIssuesShown)
    out.say(cat("and ", issues.size() - kIssuesShown, " more; wick data shows them"));

  EvalOptions eval = flags.eval;
  eval.system_prompt = flags.chat.system_prompt;
  eval.on_progress = [&](int64_t done, int64_t rows) {
    out.live(cat("evaluated ", format_count(done), "/", format_count(rows), " rows"));
  };
  EvalResult r = evaluate(model, data, eval);
  out.end_live();
  if (flags.per_example)
    for (const auto& example : r.examples) show_example(example, out);
  Json summary = {{"event", "eval"},
                  {"split", split},
                  {"file", data.file()},
                  {"loss", r.loss},
                  {"loss_stderr", r.loss_stderr},
                  {"perplexity", r.perplexity},
                  {"rows", r.rows},
                  {"tokens", r.tokens},
                  {"match_rows", r.match_rows},
                  {"matches", r.matches},
                  {"exact_match", r.match_rows > 0 ? Json(r.exact_match) : Json()},
                  {"seconds", r.seconds}};
  out.event(summary);
  if (out.json()) return kDone;
  out.say("model        " + describe_model(model.info()));
  if (!model.info().adapter_path.empty()) out.say("adapter      " + model.info().adapter_path);
  out.result(cat("data         ", data.file(), ", ", plural(r.rows, "row"), ", ",
                 plural(r.tokens, "trained token")));
  out.result(cat("loss         ", fixed(r.loss, 4), " ± ", fixed(r.loss_stderr, 4)));
  out.result(cat("perplexity   ", general(r.perplexity, 5)));
  if (r.match_rows > 0)
    out.result(cat("exact match  ", percent(r.exact_match), " (", format_count(r.matches), " of ",
                   format_count(r.match_rows), ")"));
  out.say(cat("time         ", format_seconds(r.seconds)));
  return kDone;
}

}  // namespace

std::function<int()> declare_eval(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "loss, perplexity and exact match on held-out rows";
  args.details =
      "Loss is the mean over trained tokens. For chat and completion rows the last assistant turn "
      "is generated greedily from what stands before it, and counts as exact when its text is the "
      "row's: special tokens left out, white space at both ends aside, everything else to the "
      "letter. An answer longer than --max-tokens counts as different. Rows of text, rows that "
      "were cut and, with --no-mask-prompt, all rows have a loss only.";
  args.json =
      "With --per-example one object per row: index, line, loss, tokens, and where it applies "
      "exact_match, expected, answer. At the end one with event (eval), split, file, loss, "
      "loss_stderr, perplexity, rows, tokens, match_rows, matches, exact_match, seconds.";
  args.examples = {
      {"wick eval --data data --adapter-path out", "how good is the adapter on data/test.jsonl?"},
      {"wick eval --model M --data data --split valid --max-rows 100", "a part of valid.jsonl"},
      {"wick eval --data data --adapter-path out --per-example --json", "every row, for a program"},
  };
  add_data_flags(args, flags->data);
  args.text("--split", flags->split, "NAME", "train, valid or test.")
      .one_of({"train", "valid", "test"})
      .shown("test, else valid");
  args.integer("--max-rows", flags->eval.max_rows, "N", "Only the first N rows; -1 for all.",
               {.min = -1});
  args.group("Evaluation");
  args.flag("--per-example", flags->per_example, "Show every row, not just the sum.");
  args.flag("--exact-match", flags->eval.exact_match, "Generate answers and compare them.");
  args.integer("--batch-size", flags->eval.batch_size, "N", "Rows that are answered side by side.",
               {.min = 1});
  args.integer("--max-tokens,-m", flags->eval.max_tokens, "N", "Longest answer, in tokens.",
               {.min = 1});
  add_model_flags(args, flags->model, true);
  add_chat_flags(args, flags->chat);
  add_device_flags(args, flags->device);
  add_output_flags(args, flags->output);
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
