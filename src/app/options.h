// SPDX-License-Identifier: Apache-2.0
// Flags that several verbs share, declared once so that each means the same everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/args.h"
#include "wick/wick.h"

namespace wick {

struct OutputFlags {
  bool json = false, quiet = false;
};
void add_output_flags(Args& args, OutputFlags& flags);

struct DeviceFlags {
  std::string device = "auto", cpu_isa, cuda_arch;
  int64_t threads = 0;

  EngineOptions options() const;
};
void add_device_flags(Args& args, DeviceFlags& flags);

struct ModelFlags {
  std::string model, shape, adapter_path, dtype = "auto";
  int64_t seed = 0, quantize = 0, group_size = 32;

  ModelOptions options() const;
};
// --quantize and --group-size, as every verb has them.
void add_quantize_flags(Args& args, int64_t& bits, int64_t& group_size);
// `reads_adapter`: --adapter-path is an adapter to attach (train and plan declare their own).
void add_model_flags(Args& args, ModelFlags& flags, bool reads_adapter);

// --shape, for verbs that do without text.
void add_shape_flag(Args& args, ModelFlags& flags);

struct SamplingFlags {
  GenerateOptions options;
  std::vector<std::string> logit_bias;

  // The options with logit_bias and the seed. Throws: UsageError.
  GenerateOptions checked(int64_t seed) const;
};
void add_sampling_flags(Args& args, SamplingFlags& flags);

struct ChatFlags {
  std::string system_prompt, chat_template_config, date;
};
// `today` is the default of --date, in words.
void add_chat_flags(Args& args, ChatFlags& flags, const char* today = "today");

struct DataFlags {
  std::vector<std::string> data;
  DatasetOptions options;

  // The data sets and their weights. Throws: UsageError without --data; Error where it names a data
  // set of the hub or no path.
  std::vector<DataSource> sources(const Args& args) const;
};
// `weighted`: whether --data may say how often an epoch has a row.
void add_data_flags(Args& args, DataFlags& flags, bool weighted = true);

// "file:line: what", without the line where it is about the whole file; safe for a terminal.
std::string issue_text(const DatasetIssue& issue);

// "warning: …" on standard error, unless there is nothing to say or nobody wants to hear it.
void warn_person(const std::string& what, bool quiet);

// "the built-in model" or its path, with its family and size, for people.
std::string describe_model(const ModelInfo& info);

}  // namespace wick
