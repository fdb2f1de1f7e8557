// SPDX-License-Identifier: Apache-2.0
#include "app/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "app/format.h"
#include "base/check.h"
#include "base/path_status.h"

namespace wick {

namespace {

constexpr FloatRange kShare{.min = 0.0, .max = 1.0};
constexpr FloatRange kNotNegative{.min = 0.0};
constexpr int64_t kMostTokens = 1'000'000'000;

}  // namespace

void add_output_flags(Args& args, OutputFlags& flags) {
  args.group("General");
  args.flag("--json", flags.json,
            "One JSON object per line on standard output; people's text goes to standard error.");
  args.flag("--quiet,-q", flags.quiet, "Show results and errors only.");
}

EngineOptions DeviceFlags::options() const {
  return {.device = device,
          .threads = static_cast<int>(threads),
          .cpu_isa = cpu_isa,
          .cuda_arch = cuda_arch};
}

void add_device_flags(Args& args, DeviceFlags& flags) {
  args.group("Device");
  args.text("--device", flags.device, "NAME", "auto, cuda, cpu or ref; see wick devices.");
  args.integer("--threads", flags.threads, "N", "Threads of the CPU; results do not depend on it.",
               {.min = 0, .max = 4096})
      .shown("all this process may use");
  args.text("--cpu-isa", flags.cpu_isa, "NAME", "Instruction set of the CPU; see wick devices.")
      .shown("the best there is");
  args.text("--cuda-arch", flags.cuda_arch, "NAME",
            "sm_80 keeps to what every supported NVIDIA GPU runs.")
      .shown("the best there is");
}

ModelOptions ModelFlags::options() const {
  return {.model = model,
          .adapter_path = adapter_path,
          .dtype = dtype,
          .quantize = quantize,
          .group_size = group_size,
          .shape = shape,
          .seed = static_cast<uint64_t>(seed)};
}

void add_quantize_flags(Args& args, int64_t& bits, int64_t& group_size) {
  args.integer("--quantize", bits, "BITS",
               "Keep matrices in codes of 8 or 4 bits; gains and biases stay as they are.")
      .one_of({"8", "4"})
      .shown("off");
  args.integer("--group-size", group_size, "N",
               "Numbers that share a scale of --quantize: 32, 64 or 128.")
      .one_of({"32", "64", "128"});
}

void add_model_flags(Args& args, ModelFlags& flags, bool reads_adapter) {
  args.group("Model");
  args.text("--model", flags.model, "FOLDER",
            "A model in Hugging Face layout (config.json, safetensors, tokenizer.json).")
      .shown("the small model inside wick")
      .path();
  if (reads_adapter)
    args.text("--adapter-path", flags.adapter_path, "FOLDER",
              "An adapter to attach: a folder that wick train or PEFT wrote.")
        .path_or_empty();
  args.text("--dtype", flags.dtype, "TYPE", "Type that is computed in: auto, f32 or bf16.")
      .one_of({"auto", "f32", "bf16"});
  add_quantize_flags(args, flags.quantize, flags.group_size);
  args.integer("--seed", flags.seed, "N", "Seed of every random choice.", {.min = 0});
  args.refuse("--trust-remote-code", OptionKind::kFlag,
              "it runs no code from model folders; llama, mistral, qwen2 and qwen3 are built in");
}

void add_shape_flag(Args& args, ModelFlags& flags) {
  args.group("Model");
  std::string names;
  for (const std::string& name : model_shapes()) names += (names.empty() ? "" : ", ") + name;
  args.text("--shape", flags.shape, "NAME",
            "Random weights of a known shape in place of a model: " + names + ".");
}

void add_sampling_flags(Args& args, SamplingFlags& flags) {
  GenerateOptions& o = flags.options;
  args.group("Sampling");
  args.integer("--max-tokens,-m", o.max_tokens, "N", "Longest answer, in tokens.", {.min = 1});
  args.number("--temp,--temperature", o.temperature, "X",
              "Temperature; 0 always takes the likeliest token.", kNotNegative);
  args.integer("--top-k", o.top_k, "N", "Keep the N likeliest tokens; 0 keeps all.",
               {.min = 0, .max = kMostTokens});
  args.number("--top-p", o.top_p, "X", "Keep the likeliest tokens that together reach X.", kShare);
  args.number("--min-p", o.min_p, "X", "Drop tokens below X times the likeliest one.", kShare);
  args.number("--xtc-probability", o.xtc_probability, "X",
              "How often XTC leaves out all but the least likely token above its threshold.",
              kShare);
  args.number("--xtc-threshold", o.xtc_threshold, "X", "The threshold of XTC.",
              {.min = 0.0, .max = 0.5});
  args.integer("--min-tokens-to-keep", o.min_tokens_to_keep, "N", "Filters keep at least N tokens.",
               {.min = 1, .max = kMostTokens});
  args.number("--repetition-penalty", o.repetition_penalty, "X",
              "Divides the logits of recent tokens; 1 is off.", {.min = 1e-3, .max = 100.0});
  args.number("--presence-penalty", o.presence_penalty, "X",
              "Subtracted once from the logits of recent tokens.");
  args.number("--frequency-penalty", o.frequency_penalty, "X",
              "Subtracted from the logits of recent tokens for each time they occurred.");
  args.integer("--repetition-context", o.repetition_context, "N",
               "How many tokens back the repetition penalty looks.",
               {.min = 0, .max = kMostTokens});
  args.integer("--presence-context", o.presence_context, "N", "The same for presence.",
               {.min = 0, .max = kMostTokens});
  args.integer("--frequency-context", o.frequency_context, "N", "The same for frequency.",
               {.min = 0, .max = kMostTokens});
  args.repeat("--logit-bias", flags.logit_bias, "ID=X",
              "Added to the logit of token ID; may be repeated.");
  args.repeat("--stop", o.stop, "TEXT",
              "End the answer before this text or special token; may be repeated.");
  args.repeat("--extra-eos-token", o.extra_eos_tokens, "TOKEN",
              "Further tokens that end an answer.")
      .takes_all();
  args.flag("--ignore-eos", o.ignore_eos, "Go on after the end-of-text token.");
}

GenerateOptions SamplingFlags::checked(int64_t seed) const {
  GenerateOptions result = options;
  result.seed = static_cast<uint64_t>(seed);
  if (options.top_p <= 0) throw UsageError("--top-p got 0, wanted above 0; 1 keeps all tokens");
  for (const auto& text : logit_bias) {
    size_t equals = text.find('=');
    int32_t id = 0;
    double value = 0;
    const char* end = text.data() + text.size();
    bool good = equals != std::string::npos;
    if (good) {
      auto [id_end, id_error] = std::from_chars(text.data(), text.data() + equals, id);
      auto [value_end, value_error] = std::from_chars(text.data() + equals + 1, end, value);
      good = id_error == std::errc() && id_end == text.data() + equals && id >= 0 &&
             value_error == std::errc() && value_end == end && std::isfinite(value);
    }
    if (!good)
      throw UsageError(cat("--logit-bias got \"", text, "\", wanted ID=X, such as 42=-5.5"));
    result.logit_bias[id] = value;
  }
  return result;
}

void add_chat_flags(Args& args, ChatFlags& flags, const char* today) {
  args.group("Conversation");
  args.text("--system-prompt", flags.system_prompt, "TEXT",
            "The system message of conversations that have none.");
  args.object("--chat-template-config", flags.chat_template_config, "JSON",
              "Further variables of the chat template, such as '{\"enable_thinking\": false}'.");
  args.text("--date", flags.date, "2026-01-02", "The day that the template takes for today.")
      .shown(today);
}

void add_data_flags(Args& args, DataFlags& flags, bool weighted) {
  args.group("Data");
  args.repeat(
          "--data", flags.data, weighted ? "PATH[:WEIGHT]" : "PATH",
          cat("A folder with train, valid and test files (.jsonl, .json or .csv), or one such "
              "file. Rows are {\"text\"}, {\"prompt\", \"completion\"} or {\"messages\"}. May be "
              "repeated",
              weighted ? "; a weight of 2 has each row twice per epoch, 0.5 a half of them, drawn "
                         "anew."
                       : "."))
      .path();
  args.integer("--max-seq-length", flags.options.max_seq_length, "N",
               "Longer rows are cut to N tokens, counted and named.", {.min = 1});
  args.flag("--mask-prompt", flags.options.mask_prompt,
            "Loss on assistant turns and completions only; --no-mask-prompt for every token.");
  args.text("--prompt-feature", flags.options.prompt_feature, "KEY", "Where rows keep the prompt.");
  args.text("--completion-feature", flags.options.completion_feature, "KEY",
            "Where rows keep the completion.");
  args.text("--text-feature", flags.options.text_feature, "KEY", "Where rows keep the text.");
  args.text("--chat-feature", flags.options.chat_feature, "KEY", "Where rows keep the messages.");
}

std::vector<DataSource> DataFlags::sources(const Args& args) const {
  args.require({"data"});
  std::vector<DataSource> sources;
  for (const std::string& text : data) {
    DataSource source = parse_data_source(text);
    const std::string& path = source.path;
    if (!path_exists(path)) {
      bool hub_name = std::count(path.begin(), path.end(), '/') == 1 && path.front() != '/' &&
                      path.back() != '/' && path.front() != '.' && !path.ends_with(".jsonl");
      throw Error(
          ErrorCode::kNotFound,
          cat("--data ", path, ": there is no such file or folder",
              hub_name ? "; data sets of the hub are not downloaded by name: fetch their JSON "
                         "lines and give the folder"
                       : ""));
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

std::string issue_text(const DatasetIssue& issue) {
  return cat(issue.file, issue.line > 0 ? cat(":", issue.line) : "", ": ", visible(issue.what));
}

void warn_person(const std::string& what, bool quiet) {
  if (!what.empty() && !quiet) std::fprintf(stderr, "warning: %s\n", visible(what).c_str());
}

std::string describe_model(const ModelInfo& info) {
  std::string text = !info.shape.empty() ? "random weights of the shape " + info.shape
                     : info.path.empty() ? "the model inside wick"
                                         : info.path;
  text += cat(" (", info.model_type, ", ", format_count(info.parameters), " weights in ",
              info.weight_dtype, ", ", plural(info.layers, "layer"), ", context ",
              format_count(info.context), ")");
  return text;
}

}  // namespace wick
