// SPDX-License-Identifier: Apache-2.0
#include "app/format.h"
#include "app/options.h"
#include "app/signals.h"
#include "app/terminal.h"
#include "app/verbs.h"
#include "base/check.h"

namespace wick {

namespace {

struct Flags {
  DeviceFlags device;
  OutputFlags output;
  MergeOptions merge;
  bool unmerge = false;
};

int run(const Args& args, const Flags& flags) {
  if (flags.unmerge) {
    args.require({"model"});
    if (args.given("adapter-path") || args.given("save-dtype") || flags.merge.reversible)
      throw UsageError(
          "--unmerge takes --model (the merged folder), --save-path and --overwrite only");
  } else {
    args.require({"adapter-path"});
  }
  args.require({"save-path"});
  Output out(flags.output.json, flags.output.quiet);
  MergeResult r;
  StopSignal stop;
  MergeOptions options = flags.merge;
  options.should_stop = [&] { return stop.asked(); };
  if (flags.unmerge) {
    r = unmerge_adapter(options.model, options.save_path, options.should_stop, options.overwrite);
  } else {
    Engine engine(flags.device.options());
    r = merge_adapter(engine, options);
  }
  warn_person(r.note, flags.output.quiet);
  out.event({{"event", "done"},
             {"path", r.path},
             {"tensors", r.tensors},
             {"changed", r.changed},
             {"bytes", r.bytes}});
  if (out.json()) return kDone;
  out.result(cat(flags.unmerge ? "restored the base in " : "merged model in ", r.path, ": ",
                 format_count(r.changed), " of ", plural(r.tensors, "tensor"), " changed, ",
                 format_bytes(r.bytes)));
  if (!flags.unmerge)
    out.say("try it\n  wick generate --model " + shell_quote(r.path) + " --prompt 'your question'");
  return kDone;
}

}  // namespace

std::function<int()> declare_merge(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "write an adapter into the weights, and take it out again";
  args.details =
      "The result is a plain model folder in Hugging Face layout. --unmerge restores the base to "
      "the bit: from the base that the folder names, or from what --reversible kept in it.";
  args.json = "One object: event (done), path, tensors, changed, bytes.";
  args.examples = {
      {"wick merge --model M --adapter-path out --save-path merged", "one folder, no adapter"},
      {"wick merge --model M --adapter-path out --save-path merged --reversible",
       "so that the base can be restored without it"},
      {"wick merge --unmerge --model merged --save-path base", "the base again"},
  };
  args.group("Merge");
  args.text("--model", flags->merge.model, "FOLDER",
            "A model in Hugging Face layout; with --unmerge, the merged one.")
      .shown("the small model inside wick")
      .path();
  args.text("--adapter-path", flags->merge.adapter_path, "FOLDER", "The adapter to merge.").path();
  args.text("--save-path", flags->merge.save_path, "FOLDER", "Where the result goes.").path();
  args.text("--save-dtype", flags->merge.save_dtype, "TYPE", "Type of the saved weights.")
      .one_of({"f32", "bf16", "f16"})
      .shown("the model's");
  args.flag("--reversible", flags->merge.reversible,
            "Also keep the difference to the base, for --unmerge.");
  args.flag("--overwrite", flags->merge.overwrite,
            "Replace the model or adapter that --save-path has; not needed for what an earlier "
            "merge into the same base left there.");
  args.flag("--unmerge", flags->unmerge, "Restore the base of a merged folder.");
  add_device_flags(args, flags->device);
  add_output_flags(args, flags->output);
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
