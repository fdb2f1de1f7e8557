// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "app/bench_view.h"
#include "app/options.h"
#include "app/verbs.h"
#include "base/check.h"
#include "bench/bench.h"
#include "bench/html.h"

namespace wick {

namespace {

struct Flags {
  ModelFlags model;
  DeviceFlags device;
  OutputFlags output;
  BenchOptions bench;
  std::vector<std::string> tables;
  std::string save_baseline, baseline, html;
};

Json comparison_json(const Comparison& c) {
  return {{"event", "comparison"},
          {"bench", c.bench},
          {"what", c.what},
          {"ms", c.now.median},
          {"before_ms", c.before.median},
          {"ratio", c.now.median / c.before.median},
          {"change", c.change == Change::kSlower   ? "slower"
                     : c.change == Change::kFaster ? "faster"
                                                   : "same"}};
}

void check_tables(const std::vector<std::string>& tables) {
  std::vector<std::string> known = {"all"};
  std::string list = "all";
  for (const BenchTable& table : bench_tables()) {
    if (std::string(table.name) == "profile") continue;
    known.emplace_back(table.name);
    list += cat(", ", table.name);
  }
  for (const std::string& name : tables) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string near = nearest_name(name, known);
    throw UsageError(cat("there is no table \"", name, "\"; ",
                         near.empty() ? "there are " + list : "did you mean " + near + "?"));
  }
}

int run(const Flags& flags) {
  check_tables(flags.tables);
  Output out(flags.output.json, flags.output.quiet);
  BenchOptions options = flags.bench;
  options.seed = static_cast<uint64_t>(flags.model.seed);
  if (!flags.tables.empty()) options.tables = flags.tables;
  // Where results cannot go is said before they are measured.
  std::filesystem::path kept;
  if (!flags.save_baseline.empty()) kept = baseline_path(flags.save_baseline);
  std::error_code unknown;  // is said when it is written
  for (const std::filesystem::path& file : {kept, std::filesystem::path(flags.html)})
    if (std::filesystem::is_directory(file, unknown))
      fail(ErrorCode::kInvalidArgument, file.string(), ": a folder, wanted the name of a file");
  std::vector<Json> before;
  std::filesystem::path baseline;
  if (!flags.baseline.empty()) {
    baseline = baseline_path(flags.baseline);
    before = load_baseline(baseline);
  }
  Engine engine(flags.device.options());
  Model model = Model::load(engine, flags.model.options());
  BenchMachine machine = bench_machine(model);
  BenchView view(out);
  view.machine(machine, describe_model(model.info()));
  std::vector<Json> lines;
  std::vector<BenchResult> results;
  run_bench(model, machine, options, [&](const BenchResult& result) {
    results.push_back(result);
    lines.push_back(to_json(result, machine));
    out.event(lines.back());
    view.row(result);
  });
  if (!flags.save_baseline.empty()) {
    save_baseline(kept, lines);
    out.say("baseline " + kept.string());
  }
  const std::vector<Comparison> all = compare_lines(lines, before);
  if (!flags.html.empty()) {
    write_bench_html(flags.html, machine, results, all);
    out.say("report   " + flags.html);
  }
  if (flags.baseline.empty()) return kDone;
  if (all.empty())
    fail(ErrorCode::kNotFound, baseline.string(),
         ": nothing to compare: it has none of these rows with a time, for the same model, sizes, "
         "types, device, instruction set and threads");
  bool slower = false;
  for (const Comparison& c : all) {
    out.event(comparison_json(c));
    slower |= c.change == Change::kSlower;
  }
  if (!out.json()) view.comparison(all, lines.size(), baseline.string());
  return slower ? kFailed : kDone;
}

}  // namespace

std::function<int()> declare_bench(Args& args) {
  auto flags = std::make_shared<Flags>();
  BenchOptions& o = flags->bench;
  args.summary = "how fast this machine trains and runs a model";
  std::string tables;
  for (const BenchTable& table : bench_tables())
    if (std::string(table.name) != "profile")
      tables += cat(tables.empty() ? "" : "; ", table.name, " (", table.what, ")");
  args.details =
      "Times what a run would do, with warm-up, and shows the median, the range from p10 to p90, "
      "the arithmetic, and its share of the peak that was measured on this machine. Tables: " +
      tables + "; all.";
  args.json =
      "One object per row: bench, what, shape, device, isa, threads, dtype, weight_dtype, batch, "
      "seq, rank, targets, ms (median), ms_p10, ms_p90, runs, tokens_per_second, peak_bytes (of "
      "the process in its table), gflop, percent_of_peak, utilisation, and what a row has of its "
      "own. "
      "With --baseline also one per row with event (comparison), ms, before_ms, ratio, change "
      "(slower, faster, same).";
  args.examples = {
      {"wick bench train --shape qwen2.5-0.5b --batch-size 1 --seq 512",
       "a training step of a model that need not be there"},
      {"wick bench prefill decode --model M", "a model of yours"},
      {"wick bench all --shape qwen2.5-0.5b --save-baseline before", "every table, kept"},
      {"wick bench train --shape qwen2.5-0.5b --baseline before",
       "exit code 1 if it got slower beyond the noise"},
  };
  args.positional("TABLE", flags->tables, "Tables to measure; all for every one.");
  args.group("Benchmark");
  args.integer("--batch-size", o.batch_size, "N", "Rows of a batch.", {.min = 1, .max = 4096});
  args.integer("--seq", o.seq, "N", "Tokens of a row, and of a prompt to prefill.",
               {.min = 1, .max = 1 << 20});
  args.integer("--rank", o.rank, "N", "Rank of the adapter.", {.min = 1, .max = 65536});
  args.integer("--adapters", o.adapters, "N",
               "Adapters that the training row trains at once, each with its share of the batch.",
               {.min = 1, .max = 64});
  args.list("--targets", o.targets, "NAMES", "Linears that get an adapter.").shown("q_proj,v_proj");
  args.integer("--prompt-tokens", o.prompt, "N", "Prompt before decoding.",
               {.min = 1, .max = 1 << 20});
  args.integer("--max-tokens,-m", o.new_tokens, "N", "Tokens that generate makes.",
               {.min = 1, .max = 1 << 20});
  args.number("--seconds", o.effort.seconds, "X", "Time for each row, after the warm-up.",
              {.min = 0.0, .max = 3600.0});
  args.integer("--iters", o.effort.iters, "N", "Runs of each row, instead of a time.", {.min = 1})
      .shown("");
  args.integer("--warmup", o.effort.warmup, "N", "Runs before the clock starts.", {.min = 0});
  args.flag("--losses", o.losses, "The training row has the losses of its first ten steps.");
  args.flag("--profile", o.profile,
            "Also where the time of train, prefill, decode and batch goes: kernels and steps by "
            "share, page faults and growth of the heap.");
  args.text("--save-adapter", o.save_adapter, "FOLDER",
            "Write the adapter that the training row starts from.")
      .path();
  args.text("--save-model", o.save_model, "FOLDER",
            "Write weights and config.json as a folder, to run others on the same numbers.")
      .path();
  args.group("Comparison");
  args.text("--save-baseline", flags->save_baseline, "NAME",
            "Keep the results under a name (in ~/.local/share/wick/bench) or as a file.")
      .path();
  args.text("--baseline", flags->baseline, "NAME",
            "Compare with results that were kept; exit code 1 if something got slower.")
      .path();
  args.text("--html", flags->html, "FILE", "Write the results as a page with bars.").path();
  add_model_flags(args, flags->model, false);
  add_shape_flag(args, flags->model);
  add_device_flags(args, flags->device);
  add_output_flags(args, flags->output);
  return [flags] { return run(*flags); };
}

}  // namespace wick
