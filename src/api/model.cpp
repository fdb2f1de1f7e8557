// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "api/internal.h"
#include "base/check.h"
#include "base/file.h"
#include "data/messages.h"
#include "model/adapter_start.h"
#include "model/base_sketch.h"
#include "model/shapes.h"

namespace wick {

namespace {

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Sources {
  ModelFolder folder;
  std::optional<Tokenizer> tokenizer;
  std::optional<SafetensorsSet> files;
  std::string where;  // of the weights, for messages
};

const EmbeddedFile& embedded(const std::vector<EmbeddedFile>& files, const char* name) {
  for (const EmbeddedFile& f : files)
    if (f.name == name) return f;
  fail(ErrorCode::kNotFound, "this build of wick has no model inside; name one with --model");
}

// What adapters and reports call it; a folder of that name goes first.
constexpr const char* kEmbeddedName = "wick-embedded";

bool names_embedded(const std::string& model) {
  std::error_code none;
  return model.empty() || (model == kEmbeddedName && !std::filesystem::exists(model, none));
}

Sources open_embedded(bool weights) {
  std::vector<EmbeddedFile> files = embedded_model_files();
  Sources s;
  s.where = "the embedded model";
  s.folder.config = parse_json(as_text(embedded(files, "config.json").bytes), s.where);
  s.folder.generation_config =
      parse_json(as_text(embedded(files, "generation_config.json").bytes), s.where);
  s.tokenizer = Tokenizer::from_json(as_text(embedded(files, "tokenizer.json").bytes),
                                     as_text(embedded(files, "tokenizer_config.json").bytes));
  if (weights)
    s.files = SafetensorsSet::of(SafetensorsFile(
        MappedFile::over(embedded(files, "model.safetensors").bytes, "model.safetensors")));
  return s;
}

Sources open_shape(const std::string& shape) {
  Sources s;
  s.folder.config = shape_config(shape);
  s.where = "the shape " + shape;
  return s;
}

Sources open_folder(const std::string& name, bool weights) {
  Sources s;
  s.folder = open_model_folder(name);
  // Some files add tokens, mostly for padding, that the model has no rows for: such a token cannot
  // be written, and its name in a text is text.
  const std::string config = (s.folder.folder / "config.json").string();
  const int64_t vocab = get_int(s.folder.config, "vocab_size", config, INT64_MAX);
  s.tokenizer = Tokenizer::load(s.folder.folder, vocab);
  if (weights) s.files = SafetensorsSet::open(s.folder.folder);
  s.where = s.folder.folder.string();
  return s;
}

DType compute_type(const std::string& name, const Backend& backend) {
  if (name == "auto") return backend.preferred_compute();
  const std::optional<DType> dtype = parse_dtype(name);
  if (dtype == DType::kF32 || dtype == DType::kBF16) return *dtype;
  if (dtype == DType::kF16)
    fail(ErrorCode::kUnsupported,
         "--dtype f16: the CPU computes in f32 or bf16 (f16 weights are read as they are); use "
         "auto, f32 or bf16");
  fail(ErrorCode::kInvalidArgument, "--dtype is \"", name, "\", wanted auto, f32 or bf16");
}

std::optional<DType> quantized_type(const ModelOptions& options) {
  if (options.quantize == 0) return std::nullopt;
  std::optional<DType> type =
      quantized_dtype(static_cast<int>(options.quantize), options.group_size);
  if (!type)
    fail(ErrorCode::kInvalidArgument, "--quantize ", options.quantize, " --group-size ",
         options.group_size, ": wanted 8 or 4 bits in groups of 32, 64 or 128");
  return type;
}

// JSON that a caller hands over: a fault in it is one of the request, not of a file.
Json parse_request(const std::string& text, std::string_view what) {
  try {
    return parse_json(text, what);
  } catch (const Error& error) {
    fail(ErrorCode::kInvalidArgument, error.what());
  }
}

}  // namespace

std::vector<std::string> model_shapes() { return shape_names(); }

const Tokenizer& Model::Impl::words() const {
  if (!tokenizer)
    fail(ErrorCode::kInvalidArgument, "the shape ", options.shape,
         " has no tokenizer, so it reads and writes no text; name a model with --model");
  return *tokenizer;
}

std::string Model::Impl::name() const {
  if (!options.shape.empty()) return options.shape;
  return folder.folder.empty() ? kEmbeddedName : folder.folder.string();
}

std::vector<int32_t> Model::Impl::stop_tokens() const {
  std::vector<int32_t> ids = config.eos_ids;
  if (auto eos = words().eos_id(); eos && std::find(ids.begin(), ids.end(), *eos) == ids.end())
    ids.push_back(*eos);
  return ids;
}

TemplateInput Model::Impl::template_input(const ChatOptions& options) const {
  TemplateInput input;
  input.add_generation_prompt = options.add_generation_prompt;
  input.special_tokens = words().special_tokens();
  if (!options.tools_json.empty()) {
    input.tools = parse_request(options.tools_json, "tools");
    if (!input.tools.is_array() && !input.tools.is_null())
      fail(ErrorCode::kInvalidArgument, "tools: got ", json_kind(input.tools),
           ", wanted an array of tools");
  }
  if (!options.template_config_json.empty()) {
    input.extra = parse_request(options.template_config_json, "--chat-template-config");
    if (!input.extra.is_object())
      fail(ErrorCode::kInvalidArgument, "--chat-template-config is ", json_kind(input.extra),
           ", wanted a JSON object such as {\"enable_thinking\": false}");
  }
  if (!options.date.empty()) input.date = options.date;
  return input;
}

Model::Model(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Model Model::load(Engine& engine, const ModelOptions& options) {
  const DType compute = compute_type(options.dtype, *engine.impl().backend);
  const bool from_files = !options.random_weights && options.shape.empty();
  if (!options.shape.empty() && !options.model.empty())
    fail(ErrorCode::kInvalidArgument, "--shape ", options.shape,
         " takes the place of a model; leave --model ", options.model, " out");
  Sources s = !options.shape.empty()          ? open_shape(options.shape)
              : names_embedded(options.model) ? open_embedded(from_files)
                                              : open_folder(options.model, from_files);
  auto impl = std::make_shared<Impl>(engine.impl().share());
  impl->options = options;
  impl->folder = std::move(s.folder);
  const std::string where =
      impl->folder.folder.empty() ? s.where : (impl->folder.folder / "config.json").string();
  impl->config = read_config(impl->folder.config, impl->folder.generation_config, where);
  impl->tokenizer = std::move(s.tokenizer);
  if (impl->tokenizer && impl->tokenizer->vocab_size() > impl->config.vocab)
    fail(ErrorCode::kInvalidArgument, s.where, ": the tokenizer has ids up to ",
         impl->tokenizer->vocab_size() - 1, ", but the model's vocabulary has ", impl->config.vocab,
         " entries; they do not belong together");
  // As transformers does since its version 5: the file's head counts, whatever config.json says.
  if (from_files && impl->config.tied && has_own_head(*s.files)) {
    impl->config.tied = false;
    impl->own_head = true;
  }
  impl->weights = from_files
                      ? ModelWeights::open(std::move(*s.files), s.where, impl->config)
                      : ModelWeights::random(impl->config, options.seed,
                                             options.shape.empty() ? DType::kF32 : DType::kBF16);
  impl->weights->compute_in(compute);
  if (auto type = quantized_type(options)) {
    refuse_requantizing(*impl, *type,
                        "leave --quantize out, or name the model that it was made from (wick "
                        "convert --allow-requantize makes codes of codes)");
    impl->weights->quantize_to(*type);
  }
  if (impl->tokenizer && !impl->tokenizer->chat_template_source().empty())
    impl->chat_template.emplace(impl->tokenizer->chat_template_source(),
                                s.where + ": chat template",
                                impl->tokenizer->chat_template_source(/*with_tools=*/true));
  Model model(std::move(impl));
  if (!options.adapter_path.empty()) model.attach_adapter(options.adapter_path);
  return model;
}

ModelInfo Model::info() const {
  const Impl& m = *impl_;
  ModelInfo info;
  info.path = m.folder.folder.string();
  info.shape = m.options.shape;
  info.model_type = m.config.model_type;
  info.parameters = weight_count(m.config);
  info.layers = m.config.layers;
  info.hidden = m.config.hidden;
  info.vocab = m.config.vocab;
  info.context = m.config.max_positions;
  info.weight_dtype = dtype_name(m.weights->dtype(weight_specs(m.config).front()));
  info.compute_dtype = dtype_name(m.weights->compute());
  info.adapter_path = m.adapter_path;
  info.adapter_note = m.adapter_note;
  if (m.adapter) info.adapter_parameters = m.adapter->param_count();
  return info;
}

Engine& Model::engine() const { return impl_->engine; }
const Tokenizer& Model::tokenizer() const { return impl_->words(); }

void Model::attach_adapter(const std::string& path) {
  const EngineTurn turn(engine());
  std::vector<float> params;
  auto adapter =
      std::make_shared<Adapter>(Adapter::load(path, adaptable_linears(impl_->config), params));
  start_adapter(*adapter, impl_->config, *impl_->weights, false, params,
                host_threads(impl_->backend()));
  Backend& backend = impl_->backend();
  BufferPtr buffer = backend.allocate(DType::kF32, adapter->param_count());
  backend.upload(*buffer, DType::kF32, 0, adapter->param_count(), params.data());
  impl_->adapter_note = wick::adapter_note(*impl_, *adapter, path);
  impl_->adapter = std::move(adapter);
  impl_->trained.reset();
  impl_->params = std::move(buffer);
  impl_->adapter_path = path;
  ++impl_->revision;
}

void Model::detach_adapter() {
  const EngineTurn turn(engine());
  impl_->adapter.reset();
  impl_->trained.reset();
  impl_->params.reset();
  impl_->adapter_path.clear();
  impl_->adapter_note.clear();
  ++impl_->revision;
}

bool Model::has_chat_template() const { return impl_->chat_template.has_value(); }

std::string Model::render_chat(const std::vector<Message>& messages,
                               const ChatOptions& options) const {
  Json list = Json::array();
  for (const Message& m : messages) list.push_back(Json{{"role", m.role}, {"content", m.content}});
  return render_chat_json(dump_json(list), options);
}

std::string Model::render_chat_json(const std::string& messages_json,
                                    const ChatOptions& options) const {
  if (!impl_->chat_template)
    fail(ErrorCode::kInvalidArgument, impl_->name(),
         ": the model has no chat template; give plain text (--ignore-chat-template)");
  TemplateInput input = impl_->template_input(options);
  input.messages = parse_request(messages_json, "messages");
  if (!input.messages.is_array())
    fail(ErrorCode::kInvalidArgument, "messages: got ", json_kind(input.messages),
         ", wanted an array of {\"role\", \"content\"}");
  for (size_t i = 0; i < input.messages.size(); ++i) {
    if (!input.messages[i].is_object()) continue;
    if (const Json* content = find_member(input.messages[i], "content");
        content && content->is_array())
      join_text_parts(input.messages[i]["content"], cat("messages[", i, "]"));
    drop_empty_members(input.messages[i]);
  }
  return render_messages(*impl_->chat_template, input).text;
}

std::string adapter_note(const Model::Impl& m, const Adapter& adapter, const std::string& path) {
  std::string note;
  if (const std::vector<std::string>& absent = adapter.absent(); !absent.empty()) {
    note = cat(path, " has nothing for ", absent.front());
    if (absent.size() > 1) note += cat(" and ", absent.size() - 1, " more");
    note += ", which its config targets; there the model stays as it is";
  }
  const double apart = sketch_distance(adapter.base_sketch(), base_sketch(m.config, *m.weights));
  if (apart == 0) return note;
  return cat(note, note.empty() ? "" : "; ", path, " was trained on other weights",
             adapter.base_model().empty() ? "" : " (", adapter.base_model(),
             adapter.base_model().empty() ? "" : ")", " than those of ", m.name(),
             ", which differ from them by ", std::lround(100 * apart), " %");
}

std::optional<MlxTensor> other_codes(const Model::Impl& m, DType type) {
  if (const SafetensorsSet* files = m.weights->files())
    for (const WeightSpec& spec : weight_specs(m.config))
      for (const WeightSpec::Part& part : spec.parts)
        if (auto codes = find_mlx_tensor(*files, m.name(), part); codes && codes->dtype() != type)
          return codes;
  return std::nullopt;
}

// A code of a code is off by both their errors, and nothing in the result would tell.
void refuse_requantizing(const Model::Impl& m, DType type, const char* instead) {
  if (const auto codes = other_codes(m, type))
    fail(ErrorCode::kInvalidArgument, m.name(), ": is quantised already (", codes->bits,
         " bits in groups of ", codes->group,
         "), and quantising it anew adds an error to that of its codes; ", instead);
}

void write_model_files(const Model::Impl& model, const std::filesystem::path& folder,
                       const Json& quantization) {
  if (!model.folder.folder.empty()) {
    copy_model_files(model.folder.folder, folder);
  } else {
    make_folder(folder);
    for (const EmbeddedFile& f : embedded_model_files())
      if (f.name != "model.safetensors") write_file(folder / f.name, as_text(f.bytes));
  }
  Json config = model.folder.config;
  bool changed = model.own_head;
  if (model.own_head) config["tie_word_embeddings"] = false;
  // mlx-lm reads the first and writes both.
  for (const char* key : {"quantization", "quantization_config"}) {
    changed |= config.erase(key) > 0 || !quantization.is_null();
    if (!quantization.is_null()) config[key] = quantization;
  }
  if (changed) write_file(folder / "config.json", dump_json(config, 2) + "\n");
}

}  // namespace wick
