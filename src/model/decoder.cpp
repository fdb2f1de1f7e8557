// SPDX-License-Identifier: Apache-2.0
#include "model/decoder.h"

#include <cmath>
#include <cstdlib>
#include <string_view>

namespace wick {

namespace {

constexpr const char *kEmbedding = "model.embed_tokens", *kHead = "lm_head";

std::string layer_name(int64_t layer) { return cat("model.layers.", layer, "."); }

int64_t layer_of(const std::string& tensor) {
  return std::atoll(tensor.c_str() + std::string_view("model.layers.").size());
}

// The specs of one weight, or of several that are computed as one product.
struct Specs {
  std::vector<WeightSpec> all;

  void vector(const std::string& name, int64_t n, WeightSpec::Init init) {
    all.push_back({name, {n}, {{name, {n}}}, init});
  }
  void matrix(const std::string& name, int64_t rows, int64_t cols) {
    all.push_back({name, {rows, cols}, {{name, {rows, cols}}}, WeightSpec::Init::kNormal});
  }
  void product(const std::string& prefix, const char* group,
               const std::vector<std::pair<const char*, int64_t>>& parts, int64_t in, bool bias) {
    int64_t rows = 0;
    WeightSpec w{prefix + group + ".weight", {}, {}, WeightSpec::Init::kNormal};
    WeightSpec b{prefix + group + ".bias", {}, {}, WeightSpec::Init::kZeros};
    for (const auto& [part, n] : parts) {
      w.parts.push_back({prefix + part + ".weight", {n, in}});
      b.parts.push_back({prefix + part + ".bias", {n}});
      rows += n;
    }
    w.shape = {rows, in};
    b.shape = {rows};
    all.push_back(std::move(w));
    if (bias) all.push_back(std::move(b));
  }
};

// Specs of everything, by name, for the record function.
class Weights {
 public:
  Weights(const ModelConfig& config, const DecoderContext& context)
      : specs_(weight_specs(config)), context_(context) {
    for (size_t i = 0; i < specs_.size(); ++i) index_[specs_[i].name] = i;
  }
  ValueId operator()(const std::string& name) const {
    return context_.weight(specs_[index_.at(name)]);
  }
  nn::Linear linear(const std::string& prefix, const char* group,
                    const std::vector<const char*>& parts) const {
    nn::Linear l;
    l.w = (*this)(prefix + group + ".weight");
    if (index_.count(prefix + group + ".bias")) l.bias = (*this)(prefix + group + ".bias");
    const WeightSpec& spec = specs_[index_.at(prefix + group + ".weight")];
    bool scaled = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      l.parts.push_back({prefix + parts[i], spec.parts[i].shape[0]});
      auto look = [&](const Adapter* adapter) {
        const LoraModule* module = adapter ? adapter->find(l.parts.back().module) : nullptr;
        scaled |= module && module->m_offset >= 0;
      };
      look(context_.adapter.adapter);
      for (const nn::AdapterBinding& lane : context_.adapter.lanes) look(lane.adapter);
    }
    if (scaled) l.squares = context_.squares(spec);
    return l;
  }

 private:
  std::vector<WeightSpec> specs_;
  const DecoderContext& context_;
  std::unordered_map<std::string, size_t> index_;
};

ValueId norm(Recorder& r, const ModelConfig& c, const DecoderContext& ctx, const Weights& w,
             const std::string& module, ValueId x) {
  return nn::rms_norm(r, ctx.adapter, module, w(module + ".weight"), x, c.eps);
}

ValueId record_attention(Recorder& r, const ModelConfig& c, const DecoderContext& ctx,
                         const Weights& w, int64_t layer, ValueId x) {
  const std::string prefix = layer_name(layer) + "self_attn.";
  const int64_t q_width = c.q_width(), kv_width = c.kv_width();
  ValueId qkv =
      nn::linear(r, ctx.adapter, w.linear(prefix, "qkv_proj", {"q_proj", "k_proj", "v_proj"}), x);
  ValueId v = r.cols(qkv, q_width + kv_width, q_width + 2 * kv_width);
  ValueId q, k;
  if (c.qk_norm) {
    ValueId q_normed = norm(r, c, ctx, w, prefix + "q_norm", r.cols(qkv, 0, q_width));
    ValueId k_normed =
        norm(r, c, ctx, w, prefix + "k_norm", r.cols(qkv, q_width, q_width + kv_width));
    q = r.rope(q_normed, ctx.rope_table, ctx.positions, c.head_dim);
    k = r.rope(k_normed, ctx.rope_table, ctx.positions, c.head_dim);
  } else {
    ValueId rotated =
        r.rope(r.cols(qkv, 0, q_width + kv_width), ctx.rope_table, ctx.positions, c.head_dim);
    q = r.cols(rotated, 0, q_width);
    k = r.cols(rotated, q_width, q_width + kv_width);
  }
  AttentionAttr attr;
  attr.heads = c.heads;
  attr.kv_heads = c.kv_heads;
  attr.head_dim = c.head_dim;
  attr.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  attr.window = c.windows[static_cast<size_t>(layer)];
  attr.causal_self = ctx.cache_rows == kNone;
  if (ctx.cache_rows != kNone) {
    ValueId cache_k = ctx.cache_k[static_cast<size_t>(layer)];
    ValueId cache_v = ctx.cache_v[static_cast<size_t>(layer)];
    r.copy(k, ctx.cache_rows, cache_k);
    r.copy(v, ctx.cache_rows, cache_v);
    k = cache_k;
    v = cache_v;
  }
  return r.attention(q, k, v, ctx.begin, ctx.end, attr);
}

// What a block adds to the stream behind its attention.
ValueId record_output(Recorder& r, const DecoderContext& ctx, const Weights& w, int64_t layer,
                      ValueId attended) {
  const std::string prefix = layer_name(layer) + "self_attn.";
  return nn::linear(r, ctx.adapter, w.linear(prefix, "o_proj", {"o_proj"}), attended);
}

ValueId record_mlp(Recorder& r, const ModelConfig& c, const DecoderContext& ctx, const Weights& w,
                   int64_t layer, ValueId x) {
  const std::string prefix = layer_name(layer) + "mlp.";
  ValueId gate_up =
      nn::linear(r, ctx.adapter, w.linear(prefix, "gate_up_proj", {"gate_proj", "up_proj"}), x);
  return nn::linear(r, ctx.adapter, w.linear(prefix, "down_proj", {"down_proj"}),
                    r.gated_act(gate_up, c.act));
}

// What is recorded of the rows that are asked for alone.
DecoderContext of_rows(Recorder& r, const DecoderContext& ctx) {
  DecoderContext some = ctx;
  some.adapter.keys = ctx.row_keys;
  if (ctx.row_keys != kNone)
    for (size_t k = 0; k < some.adapter.lanes.size(); ++k)
      some.adapter.lanes[k].keys = some.adapter.rows_of_lane(r, k, ctx.row_keys);
  return some;
}

}  // namespace

std::vector<WeightSpec> weight_specs(const ModelConfig& c) {
  using Init = WeightSpec::Init;
  Specs specs;
  specs.matrix("model.embed_tokens.weight", c.vocab, c.hidden);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const std::string at = layer_name(layer), attention = at + "self_attn.", mlp = at + "mlp.";
    specs.vector(at + "input_layernorm.weight", c.hidden, Init::kOnes);
    specs.product(attention, "qkv_proj",
                  {{"q_proj", c.q_width()}, {"k_proj", c.kv_width()}, {"v_proj", c.kv_width()}},
                  c.hidden, c.qkv_bias);
    if (c.qk_norm) {
      specs.vector(attention + "q_norm.weight", c.head_dim, Init::kOnes);
      specs.vector(attention + "k_norm.weight", c.head_dim, Init::kOnes);
    }
    specs.product(attention, "o_proj", {{"o_proj", c.hidden}}, c.q_width(), c.o_bias);
    specs.vector(at + "post_attention_layernorm.weight", c.hidden, Init::kOnes);
    specs.product(mlp, "gate_up_proj", {{"gate_proj", c.ffn}, {"up_proj", c.ffn}}, c.hidden,
                  c.mlp_bias);
    specs.product(mlp, "down_proj", {{"down_proj", c.hidden}}, c.ffn, c.mlp_bias);
  }
  specs.vector("model.norm.weight", c.hidden, Init::kOnes);
  if (!c.tied) specs.matrix("lm_head.weight", c.vocab, c.hidden);
  return specs.all;
}

std::vector<LinearInfo> adaptable_linears(const ModelConfig& c) {
  std::vector<LinearInfo> linears;
  int64_t group = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    auto add = [&](const char* module, int64_t in, int64_t out) {
      linears.push_back({layer_name(layer) + module, in, out, layer, group});
    };
    add("self_attn.q_proj", c.hidden, c.q_width());
    add("self_attn.k_proj", c.hidden, c.kv_width());
    add("self_attn.v_proj", c.hidden, c.kv_width());
    ++group;
    add("self_attn.o_proj", c.q_width(), c.hidden);
    ++group;
    add("mlp.gate_proj", c.hidden, c.ffn);
    add("mlp.up_proj", c.hidden, c.ffn);
    ++group;
    add("mlp.down_proj", c.ffn, c.hidden);
    ++group;
  }
  linears.push_back({kEmbedding, c.vocab, c.hidden, -1, group++, ModuleKind::kEmbedding});
  auto gain = [&](const std::string& module, int64_t layer, int64_t width) {
    linears.push_back({module, 1, width, layer, group++, ModuleKind::kGain});
  };
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const std::string at = layer_name(layer);
    gain(at + "input_layernorm", layer, c.hidden);
    if (c.qk_norm) {
      gain(at + "self_attn.q_norm", layer, c.head_dim);
      gain(at + "self_attn.k_norm", layer, c.head_dim);
    }
    gain(at + "post_attention_layernorm", layer, c.hidden);
  }
  gain("model.norm", -1, c.hidden);
  for (const WeightSpec& spec : weight_specs(c))
    for (const WeightSpec::Part& part : spec.parts)
      if (part.tensor.ends_with(".bias"))
        linears.push_back(
            {part.tensor, 1, part.shape[0], layer_of(part.tensor), group++, ModuleKind::kBias});
  linears.push_back({kHead, c.hidden, c.vocab, -1, group++, ModuleKind::kHead, c.tied});
  return linears;
}

int64_t weight_count(const ModelConfig& config) {
  int64_t n = 0;
  for (const WeightSpec& spec : weight_specs(config)) n += spec.shape.elements();
  return n;
}

ValueId record_decoder(Recorder& r, const ModelConfig& c, const DecoderContext& ctx) {
  Weights w(c, ctx);
  const int64_t end = ctx.end_block < 0 ? c.layers : ctx.end_block;
  ValueId x = ctx.first_block > 0
                  ? ctx.stream
                  : nn::embed(r, ctx.adapter, kEmbedding, w(std::string(kEmbedding) + ".weight"),
                              ctx.ids, c.pad_row);
  const int64_t skips_at = ctx.rows != kNone && ctx.skips_rows ? c.layers - 1 : -1;
  const DecoderContext of_last = skips_at >= 0 ? of_rows(r, ctx) : DecoderContext();
  bool all_rows = true;
  for (int64_t layer = ctx.first_block; layer < end; ++layer) {
    const std::string at = layer_name(layer);
    r.begin_block(layer >= ctx.recompute_first && layer < ctx.recompute_end);
    ValueId h = norm(r, c, ctx, w, at + "input_layernorm", x);
    ValueId attended = record_attention(r, c, ctx, w, layer, h);
    all_rows = layer != skips_at;
    if (!all_rows) {
      attended = r.gather_rows(attended, ctx.rows);
      x = r.gather_rows(x, ctx.rows);
    }
    const DecoderContext& rest = all_rows ? ctx : of_last;
    x = r.add(x, record_output(r, rest, w, layer, attended));
    h = norm(r, c, rest, w, at + "post_attention_layernorm", x);
    x = r.add(x, record_mlp(r, c, rest, w, layer, h));
    r.end_block();
  }
  if (ctx.end_block >= 0) return x;
  x = norm(r, c, ctx, w, "model.norm", x);
  return ctx.rows != kNone && all_rows ? r.gather_rows(x, ctx.rows) : x;
}

ValueId head_weight(Recorder& r, const ModelConfig& c, const DecoderContext& ctx) {
  const Weights w(c, ctx);
  // A tied head stays the base's table where an adapter trains the embedding, as in PEFT.
  const ValueId own = ctx.adapter.whole(r, kHead);
  return own != kNone ? own : w(std::string(c.tied ? kEmbedding : kHead) + ".weight");
}

namespace {

constexpr double kPi = 3.14159265358979323846;

// YaRN: how much of pair i's frequency is stretched, 0 for the fast ones to 1 for the slow ones.
float yarn_ramp(const ModelConfig& c, int64_t i) {
  const auto pairs = static_cast<double>(c.head_dim);
  auto pair_of = [&](double turns) {  // within the original positions
    return pairs * std::log(static_cast<double>(c.rope.original_positions) / (turns * 2.0 * kPi)) /
           (2.0 * std::log(c.rope.theta));
  };
  double low = pair_of(c.rope.beta_fast), high = pair_of(c.rope.beta_slow);
  if (c.rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, pairs - 1.0);
  if (low == high) high += 0.001;
  const float along = static_cast<float>(i) - static_cast<float>(low);
  return std::clamp(along / static_cast<float>(high - low), 0.0f, 1.0f);
}

// Of pair i. Each step is rounded to f32, because models are trained with frequencies made so: one
// that is right to the last place turns far positions otherwise.
float rope_frequency(const ModelConfig& c, int64_t i) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(c.head_dim);
  const auto period =  // over 2 pi
      static_cast<float>(std::pow(static_cast<double>(static_cast<float>(c.rope.theta)),
                                  static_cast<double>(exponent)));
  const auto factor = static_cast<float>(c.rope.factor);
  const float f = 1.0f / period;
  switch (c.rope.scaling) {
    case RopeConfig::Scaling::kNone:
      return f;
    case RopeConfig::Scaling::kLinear:
      return f / factor;
    case RopeConfig::Scaling::kYarn: {
      const float fast = 1.0f - yarn_ramp(c, i);
      return 1.0f / (factor * period) * (1.0f - fast) + f * fast;
    }
    case RopeConfig::Scaling::kLlama3: {
      // Long wavelengths are stretched by the factor, short ones left, those between blended.
      const auto original = static_cast<double>(c.rope.original_positions);
      const float wavelength = static_cast<float>(2.0 * kPi) / f;
      if (wavelength > static_cast<float>(original / c.rope.low_freq_factor)) return f / factor;
      if (wavelength < static_cast<float>(original / c.rope.high_freq_factor)) return f;
      const float blend =
          (static_cast<float>(original) / wavelength - static_cast<float>(c.rope.low_freq_factor)) /
          static_cast<float>(c.rope.high_freq_factor - c.rope.low_freq_factor);
      return (1.0f - blend) * f / factor + blend * f;
    }
  }
  return f;
}

}  // namespace

std::vector<float> rope_table(const ModelConfig& c, int64_t positions) {
  const int64_t half = c.head_dim / 2;
  std::vector<float> frequency(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) frequency[static_cast<size_t>(i)] = rope_frequency(c, i);
  std::vector<float> table(static_cast<size_t>(positions * c.head_dim));
  for (int64_t p = 0; p < positions; ++p)
    for (int64_t i = 0; i < half; ++i) {
      float angle = static_cast<float>(p) * frequency[static_cast<size_t>(i)];
      float* row = table.data() + p * c.head_dim;
      const double scale = c.rope.attention_factor;
      row[i] = static_cast<float>(scale * std::cos(static_cast<double>(angle)));
      row[half + i] = static_cast<float>(scale * std::sin(static_cast<double>(angle)));
    }
  return table;
}

}  // namespace wick
