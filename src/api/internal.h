// SPDX-License-Identifier: Apache-2.0
// What stands behind the public handles.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "adapter/lora.h"
#include "backend/backend.h"
#include "data/dataset.h"
#include "infer/generator.h"
#include "io/model_files.h"
#include "model/config.h"
#include "model/weight_rows.h"
#include "model/weights.h"
#include "text/chat_template.h"
#include "train/step.h"
#include "wick/wick.h"

namespace wick {

struct Engine::Impl : std::enable_shared_from_this<Engine::Impl> {
  // Another handle of the same engine.
  Engine share() { return Engine(shared_from_this()); }

  std::unique_ptr<Backend> backend;
  std::recursive_timed_mutex turn;
  std::atomic<bool> trains = false;  // whoever has the turn keeps it for a whole run
};

// The turn of one thread on an engine, whose threads and weights are not for several at once.
// Others wait for it; during a training run they are refused, because a callback may wait for them.
class EngineTurn {
 public:
  explicit EngineTurn(const Engine& engine, bool trains = false);
  ~EngineTurn();
  EngineTurn(const EngineTurn&) = delete;
  EngineTurn& operator=(const EngineTurn&) = delete;

 private:
  Engine::Impl& engine_;
  bool outermost_run_ = false;
};

struct Model::Impl : std::enable_shared_from_this<Model::Impl> {
  explicit Impl(Engine on) : engine(std::move(on)) {}
  // Another handle of the same model.
  Model share() { return Model(shared_from_this()); }

  Engine engine;  // first, and so the last to end: buffers are its device's
  ModelOptions options;
  ModelFolder folder;  // its path is "" for the embedded model and for a shape
  ModelConfig config;
  bool own_head = false;  // of files whose config.json says that it is tied
  std::optional<ModelWeights> weights;
  std::optional<Tokenizer> tokenizer;  // none for a shape
  std::optional<ChatTemplate> chat_template;

  // An attached adapter, or weights that a full training changed; `revision` counts the changes.
  std::string adapter_path, adapter_note;
  std::shared_ptr<const Adapter> adapter;
  std::shared_ptr<const Trainable> trained;
  BufferPtr params;
  int64_t revision = 0;

  Backend& backend() const { return *engine.impl().backend; }
  ParamSource source() const {
    return {adapter.get(), trained && !adapter ? &trained->layout : nullptr};
  }
  std::string name() const;  // for adapter_config.json and messages
  // Throws: kInvalidArgument for a shape, which has no tokenizer.
  const Tokenizer& words() const;
  // Tokens that end a text: the config's and the tokenizer's.
  std::vector<int32_t> stop_tokens() const;
  TemplateInput template_input(const ChatOptions& options) const;
};

struct Dataset::Impl {
  Model model;
  ExampleSet rows;
  DatasetOptions options;
};

DataOptions data_options(const DatasetOptions& options);

// For work on this side of a device: as many as it has where it is the CPU, else all.
inline int host_threads(const Backend& backend) {
  return backend.runs_ahead() ? 0 : backend.info().threads;
}

// The prompt of a row's last trained turn and the answer that was trained, without stop tokens.
// None for plain texts and for rows that were cut. `words` is the prompt without the template's
// words, where the row kept it (Example::prompt).
struct PromptAndAnswer {
  std::vector<int32_t> prompt, answer;
  std::string words;
};
std::optional<PromptAndAnswer> last_turn(const Example& example, const Model::Impl& model);
// An answer as it is compared: without white space at both ends.
std::string trimmed(const std::string& text);

// One of the files of the model inside the binary.
struct EmbeddedFile {
  std::string name;
  std::span<const std::byte> bytes;
};
std::vector<EmbeddedFile> embedded_model_files();  // empty in a build without one

// Config, tokenizer and templates of a model into a folder. config.json says `quantization` of the
// weights beside it (null: they are plain), whatever the model's own says.
void write_model_files(const Model::Impl& model, const std::filesystem::path& folder,
                       const Json& quantization = nullptr);

// A line where the weights are not those that the adapter was trained on, up to rounding and as far
// as its file tells, or where its file lacks what its config targets; else "".
std::string adapter_note(const Model::Impl& model, const Adapter& adapter, const std::string& path);

// The first matrix whose codes in the model's files are of another kind than `type`, so that
// quantising to it would make codes of codes.
std::optional<MlxTensor> other_codes(const Model::Impl& model, DType type);
// Throws: kInvalidArgument where there is one; `instead` ends the message.
void refuse_requantizing(const Model::Impl& model, DType type, const char* instead);

// Throws: kInvalidArgument where `to` is missing or is `from`; `whose` is "the model's", ….
void refuse_in_place(const std::filesystem::path& from, const char* whose,
                     const std::filesystem::path& to);

// Throws: kInvalidArgument where `to` has files of a model or an adapter and `overwrite` is not
// said.
void refuse_replacing(const std::filesystem::path& to, bool overwrite);

// report.html: curves, settings, samples; no network.
void write_report(const std::filesystem::path& path, const TrainOptions& options,
                  const ModelInfo& model, const DeviceReport& device, const Forecast& forecast,
                  const TrainResult& result);

}  // namespace wick
