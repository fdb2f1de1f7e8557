// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "api/internal.h"
#include "base/check.h"

namespace wick {

namespace {

constexpr int64_t kSlots = 8;  // sequences that complete_many decodes side by side

// All of these count tokens: more than an int holds means the same as the most it holds.
int narrowed(int64_t tokens) {
  using Limits = std::numeric_limits<int>;
  return static_cast<int>(std::clamp<int64_t>(tokens, Limits::min(), Limits::max()));
}

DecodeOptions decode_options(const GenerateOptions& o, const Model::Impl& model) {
  DecodeOptions d;
  d.max_tokens = o.max_tokens;
  d.should_stop = o.should_stop;
  SampleOptions& s = d.sample;
  s.temperature = static_cast<float>(o.temperature);
  s.top_k = narrowed(o.top_k);
  s.top_p = static_cast<float>(o.top_p);
  s.min_p = static_cast<float>(o.min_p);
  s.xtc_probability = static_cast<float>(o.xtc_probability);
  s.xtc_threshold = static_cast<float>(o.xtc_threshold);
  s.min_tokens_to_keep = narrowed(o.min_tokens_to_keep);
  s.repetition_penalty = static_cast<float>(o.repetition_penalty);
  s.presence_penalty = static_cast<float>(o.presence_penalty);
  s.frequency_penalty = static_cast<float>(o.frequency_penalty);
  s.repetition_context = narrowed(o.repetition_context);
  s.presence_context = narrowed(o.presence_context);
  s.frequency_context = narrowed(o.frequency_context);
  for (const auto& [id, bias] : o.logit_bias) s.logit_bias[id] = static_cast<float>(bias);
  s.seed = o.seed;
  d.stop = o.stop;
  std::vector<int32_t> stops = model.stop_tokens();
  s.xtc_special = stops;
  for (int32_t id : model.words().encode_ids("\n", false)) s.xtc_special.push_back(id);
  if (!o.ignore_eos) d.stop_tokens = stops;
  // The text of an answer is without special tokens, so that none would ever be found in it.
  for (const std::string& text : o.stop)
    if (std::optional<int32_t> id = model.words().id_of(text); id && model.words().is_special(*id))
      d.stop_tokens.push_back(*id);
  for (const std::string& token : o.extra_eos_tokens) {
    std::optional<int32_t> id = model.words().id_of(token);
    if (!id)
      fail(ErrorCode::kInvalidArgument, "--extra-eos-token: the vocabulary has no token \"", token,
           "\"");
    d.stop_tokens.push_back(*id);
  }
  return d;
}

Generation generation(const Decoded& d) {
  Generation g;
  g.text = d.text;
  g.tokens = d.tokens;
  g.prompt_tokens = d.prompt_tokens;
  g.generated_tokens = static_cast<int64_t>(d.tokens.size());
  double prompt_tokens = static_cast<double>(d.prompt_tokens - d.reused_tokens);
  if (d.prompt_seconds > 0) g.prompt_tps = prompt_tokens / d.prompt_seconds;
  if (d.generation_seconds > 0)
    g.generation_tps = static_cast<double>(g.generated_tokens) / d.generation_seconds;
  g.first_token_ms = 1e3 * d.first_token_seconds;
  g.finish_reason = d.finish_reason;
  return g;
}

}  // namespace

struct Generator::Impl {
  explicit Impl(Model of) : model(std::move(of)) {}

  Model model;
  int64_t revision = -1;
  // What the generator was made with stays alive while it does.
  std::shared_ptr<const Adapter> adapter;
  std::shared_ptr<const Trainable> trained;
  std::unique_ptr<TextGenerator> generator;
  bool in_use = false;

  TextGenerator& current() {
    Model::Impl& m = model.impl();
    if (!generator || revision != m.revision) {
      generator.reset();
      adapter = m.adapter;
      trained = m.trained;
      m.weights->shorten(true);
      generator = std::make_unique<TextGenerator>(m.backend(), m.config, *m.weights, m.words(),
                                                  m.source(), m.params);
      revision = m.revision;
    }
    return *generator;
  }
};

// The turn on the engine for one call. A text is made in the cache and in the programs of its
// generator: a callback cannot have another one made there.
class Generator::Use {
 public:
  explicit Use(Impl& impl) : turn_(impl.model.engine()), impl_(impl) {
    if (impl.in_use)
      fail(ErrorCode::kInvalidArgument,
           "this Generator is in the middle of a text, whose callback asks it for another; use a "
           "Generator of its own there");
    impl.in_use = true;
  }
  ~Use() { impl_.in_use = false; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  EngineTurn turn_;
  Impl& impl_;
};

Generator::Generator(Model& model) : impl_(std::make_unique<Impl>(model.impl().share())) {}
Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;

Generation Generator::complete(const std::string& text, const GenerateOptions& options,
                               const OnText& on_text, bool add_special) {
  const Use use(*impl_);
  const Model::Impl& m = impl_->model.impl();
  std::vector<int32_t> ids = m.words().encode_ids(text, add_special);
  return generation(impl_->current().generate(ids, decode_options(options, m), on_text));
}

Generation Generator::generate(const std::string& prompt, const GenerateOptions& options,
                               const OnText& on_text) {
  if (!impl_->model.has_chat_template()) return complete(prompt, options, on_text);
  return chat({{"user", prompt}}, options, on_text);
}

Generation Generator::chat(const std::vector<Message>& messages, const GenerateOptions& options,
                           const OnText& on_text, const ChatOptions& chat) {
  return complete(impl_->model.render_chat(messages, chat), options, on_text, false);
}

std::vector<Generation> Generator::complete_many(const std::vector<std::string>& texts,
                                                 const GenerateOptions& options, bool add_special,
                                                 const OnDone& on_done) {
  const Use use(*impl_);
  const Model::Impl& m = impl_->model.impl();
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text : texts) prompts.push_back(m.words().encode_ids(text, add_special));
  std::vector<Generation> results(texts.size());
  if (texts.empty()) return results;
  impl_->current().generate_many(prompts, decode_options(options, m), kSlots,
                                 [&](size_t i, const Decoded& d) {
                                   results[i] = generation(d);
                                   return !on_done || on_done(i, results[i]);
                                 });
  return results;
}

int64_t Generator::count_tokens(const std::string& text, bool add_special) const {
  return static_cast<int64_t>(impl_->model.impl().words().encode_ids(text, add_special).size());
}

}  // namespace wick
