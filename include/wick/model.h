// SPDX-License-Identifier: Apache-2.0
// Model: a config, weights, a tokenizer and a chat template, and at most one attached adapter. What
// is made from a model (a Generator, a Trainer, a Dataset) keeps it, wherever this object goes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "wick/engine.h"
#include "wick/tokenizer.h"

namespace wick {

struct ModelOptions {
  std::string model = {};         // a folder in Hugging Face layout or a name in the hub cache;
                                  // "" or wick-embedded: the small model inside the binary
  std::string adapter_path = {};  // a PEFT folder to attach; "": none
  std::string dtype = "auto";     // compute type: auto, f32, bf16; auto is bf16 where
                                  // the device has units for it
  int64_t quantize = 0;           // matrices rest in codes of 8 or 4 bits; 0: as the file has them
  int64_t group_size = 32;        // of those codes, numbers that share a scale: 32, 64, 128
  bool random_weights = false;    // keep config and tokenizer, draw the weights anew
  std::string shape = {};  // instead of a model: random bf16 weights of a known shape, such as
                           // qwen2.5-0.5b (see model_shapes()), without a tokenizer
  uint64_t seed = 0;       // of random weights
};

// Names that ModelOptions::shape takes.
std::vector<std::string> model_shapes();

struct ModelInfo {
  std::string path;        // "" for the embedded one and for a shape
  std::string shape;       // "" unless it was made from one
  std::string model_type;  // llama, qwen2, …
  int64_t parameters = 0, layers = 0, hidden = 0, vocab = 0, context = 0;
  std::string weight_dtype;   // of the largest matrices: f32, bf16, f16, q8g32, q4g64, …
  std::string compute_dtype;  // f32 or bf16
  std::string adapter_path;   // "" if none is attached
  // Where the adapter was trained on other weights than the model's, as far as its file tells, or
  // where its file lacks what its config targets: a line that says so.
  std::string adapter_note;
  int64_t adapter_parameters = 0;
};

// One message of a conversation. For tool calls and other fields use JSON texts (render_chat_json).
struct Message {
  std::string role;  // system, user, assistant
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;
  std::string tools_json = {};            // an array; "": none
  std::string template_config_json = {};  // an object of further template variables; "": none
  std::string date = {};                  // "2026-01-02": the template's today; "": now
};

class Model {
 public:
  // Reads headers, config and tokenizer; weights are read when they are first needed.
  // Throws: kNotFound, kCorruptFile, kUnsupported, kInvalidArgument; each says what to do.
  static Model load(Engine& engine, const ModelOptions& options = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  ModelInfo info() const;
  Engine& engine() const;
  // Throws: kInvalidArgument for a model that was made from a shape: it has none.
  const Tokenizer& tokenizer() const;

  // Attaches a PEFT adapter in place of the one before. Throws as Model::load.
  void attach_adapter(const std::string& path);
  void detach_adapter();

  bool has_chat_template() const;
  // The text of a conversation as the model expects it. Throws: kInvalidArgument where the template
  // refuses it, the model has none, or the JSON texts are not what they should be.
  std::string render_chat(const std::vector<Message>& messages,
                          const ChatOptions& options = {}) const;
  std::string render_chat_json(const std::string& messages_json,
                               const ChatOptions& options = {}) const;

  struct Impl;
  Impl& impl() const { return *impl_; }

 private:
  explicit Model(std::shared_ptr<Impl> impl);
  Handle<Impl> impl_;
};

}  // namespace wick
