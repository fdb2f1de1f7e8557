// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/file.h"
#include "base/rng.h"
#include "cli/cli.h"
#include "io/safetensors_writer.h"

namespace wick::test {

namespace {

constexpr int64_t kHidden = 32, kFfn = 64, kLayers = 2, kHeads = 4, kKvHeads = 2, kVocab = 261;

std::string utf8(unsigned code) {
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

// GPT-2's printable stand-ins for bytes: printable Latin-1 is itself, the others follow from
// U+0100.
Json byte_vocabulary() {
  Json vocab = Json::object();
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    vocab[utf8(printable ? byte : next++)] = byte;
  }
  return vocab;
}

}  // namespace

void write_tiny_model(const std::string& folder, int64_t context) {
  std::filesystem::path path(folder);
  std::filesystem::create_directories(path);
  Json config = {{"architectures", {"LlamaForCausalLM"}},
                 {"model_type", "llama"},
                 {"hidden_size", kHidden},
                 {"intermediate_size", kFfn},
                 {"num_hidden_layers", kLayers},
                 {"num_attention_heads", kHeads},
                 {"num_key_value_heads", kKvHeads},
                 {"max_position_embeddings", context},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 10000.0},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", true},
                 {"torch_dtype", "float32"},
                 {"bos_token_id", 256},
                 {"eos_token_id", 257},
                 {"vocab_size", kVocab}};
  write_file(path / "config.json", dump_json(config, 2));

  Json added = Json::array();
  int64_t id = 256;
  for (const char* token : {"<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"})
    added.push_back({{"id", id++},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  Json byte_level = {{"type", "ByteLevel"},
                     {"add_prefix_space", false},
                     {"trim_offsets", true},
                     {"use_regex", true}};
  Json begin = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", Json::array()},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}};
  Json tokenizer = {{"version", "1.0"},
                    {"truncation", nullptr},
                    {"padding", nullptr},
                    {"added_tokens", added},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", byte_level},
                    {"post_processor", begin},
                    {"decoder", byte_level},
                    {"model",
                     {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", byte_vocabulary()},
                      {"merges", Json::array()}}}};
  write_file(path / "tokenizer.json", dump_json(tokenizer));
  Json settings = {{"bos_token", "<s>"},
                   {"eos_token", "</s>"},
                   {"chat_template",
                    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
                    "{{ eos_token }}{% endfor %}"
                    "{% if add_generation_prompt %}<|assistant|>{% endif %}"}};
  write_file(path / "tokenizer_config.json", dump_json(settings, 2));

  int64_t head = kHidden / kHeads;
  std::vector<std::pair<std::string, Shape>> tensors = {
      {"model.embed_tokens.weight", Shape{kVocab, kHidden}}, {"model.norm.weight", Shape{kHidden}}};
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    std::string at = "model.layers." + std::to_string(layer) + ".";
    tensors.insert(tensors.end(),
                   {{at + "input_layernorm.weight", Shape{kHidden}},
                    {at + "post_attention_layernorm.weight", Shape{kHidden}},
                    {at + "self_attn.q_proj.weight", Shape{kHeads * head, kHidden}},
                    {at + "self_attn.k_proj.weight", Shape{kKvHeads * head, kHidden}},
                    {at + "self_attn.v_proj.weight", Shape{kKvHeads * head, kHidden}},
                    {at + "self_attn.o_proj.weight", Shape{kHidden, kHeads * head}},
                    {at + "mlp.gate_proj.weight", Shape{kFfn, kHidden}},
                    {at + "mlp.up_proj.weight", Shape{kFfn, kHidden}},
                    {at + "mlp.down_proj.weight", Shape{kHidden, kFfn}}});
  }
  SafetensorsWriter out(path / "model.safetensors");
  for (const auto& [name, shape] : tensors) out.declare(name, DType::kF32, shape);
  for (const auto& [name, shape] : tensors) {
    bool gain = name.find("norm") != std::string::npos;
    Rng rng(name_key(name));
    std::vector<float> values(static_cast<size_t>(shape.elements()));
    for (float& value : values) value = gain ? 1.0f : 0.5f * uniform_float(rng.next_u32()) - 0.25f;
    out.write(name, std::as_bytes(std::span<const float>(values)));
  }
  out.commit();
}

void write_tiny_data(const std::string& folder, int rows) {
  std::filesystem::path path(folder);
  std::filesystem::create_directories(path);
  int next = 0;
  for (const char* split : {"train", "valid", "test"}) {
    int count = std::string(split) == "train" ? rows : 4;
    std::string text;
    for (int i = 0; i < count; ++i, ++next) {
      std::string word(1, static_cast<char>('a' + next % 26));
      Json messages = Json::array();
      messages.push_back({{"role", "user"}, {"content", "say " + word}});
      messages.push_back({{"role", "assistant"}, {"content", word + word}});
      text += dump_json(Json{{"messages", messages}}) + "\n";
    }
    write_file(path / (std::string(split) + ".jsonl"), text);
  }
}

}  // namespace wick::test
