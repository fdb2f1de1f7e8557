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
  ConvertOptions convert;
  bool dequantize = false;
};

int run(const Args& args, const Flags& flags) {
  args.require({"save-path"});
  if (flags.dequantize && args.given("quantize"))
    throw UsageError("--quantize and --dequantize exclude each other; give one");
  if (args.given("group-size") && !args.given("quantize"))
    throw UsageError("--group-size belongs to --quantize; give both");
  if (flags.convert.allow_requantize && !args.given("quantize"))
    throw UsageError("--allow-requantize belongs to --quantize; give both");
  args.require({"quantize", "dequantize", "save-dtype"});
  Output out(flags.output.json, flags.output.quiet);
  Engine engine(flags.device.options());
  StopSignal stop;
  ConvertOptions options = flags.convert;
  options.should_stop = [&] { return stop.asked(); };
  ConvertResult r = convert_model(engine, options);
  out.event({{"event", "done"},
             {"path", r.path},
             {"tensors", r.tensors},
             {"quantized", r.quantized},
             {"bytes", r.bytes}});
  if (out.json()) return kDone;
  out.result(cat("model in ", r.path, ": ", format_count(r.quantized), " of ",
                 plural(r.tensors, "tensor"), " quantised, ", format_bytes(r.bytes)));
  out.say("try it\n  wick generate --model " + shell_quote(r.path) + " --prompt 'your question'");
  return kDone;
}

}  // namespace

std::function<int()> declare_convert(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "write a model with other weights: quantised, plain again, or of another type";
  args.details =
      "Quantised folders are in mlx-lm's layout, and it reads them; wick reads them back to the "
      "bit, so a run on the folder equals a run with --quantize on the model. Gains, biases and "
      "matrices whose rows are not whole groups stay as they are; where a model has such matrices, "
      "--quantize makes codes of them too, and the two runs differ.";
  args.json = "One object: event (done), path, tensors, quantized, bytes.";
  args.examples = {
      {"wick convert --model M --quantize 4 --save-path M-4bit", "a quarter of the size"},
      {"wick convert --model M --quantize 8 --group-size 64 --save-path M-8bit",
       "8 bits, 64 numbers to a scale"},
      {"wick convert --model M-4bit --dequantize --save-path M-plain", "bf16 again"},
  };
  args.group("Convert");
  args.text("--model", flags->convert.model, "FOLDER", "A model in Hugging Face layout.")
      .shown("the small model inside wick")
      .path();
  args.text("--save-path", flags->convert.save_path, "FOLDER", "Where the result goes.").path();
  add_quantize_flags(args, flags->convert.quantize, flags->convert.group_size);
  args.flag("--allow-requantize", flags->convert.allow_requantize,
            "Quantise a model that is quantised otherwise already: both errors add up.");
  args.flag("--dequantize", flags->dequantize, "Write the numbers that the codes stand for.");
  args.text("--save-dtype", flags->convert.save_dtype, "TYPE", "Type of plain weights.")
      .one_of({"f32", "bf16", "f16"})
      .shown("the model's; bf16 for what was quantised");
  args.flag("--overwrite", flags->convert.overwrite,
            "Replace the model or adapter that --save-path has.");
  add_device_flags(args, flags->device);
  add_output_flags(args, flags->output);
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
