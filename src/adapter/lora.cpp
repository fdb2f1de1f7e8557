// SPDX-License-Identifier: Apache-2.0
#include "adapter/lora.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "adapter/select.h"
#include "adapter/svd.h"
#include "base/rng.h"

namespace wick {

namespace {

void check_options(const LoraOptions& o) {
  auto refuse = [](const std::string& what) { fail(ErrorCode::kInvalidArgument, what); };
  if (o.rank < 1 || o.rank > kMostRank)
    refuse(cat("--rank is ", o.rank, ", wanted 1 to ", kMostRank));
  if (!(o.dropout >= 0.0f && o.dropout < 1.0f))
    refuse(cat("--lora-dropout is ", o.dropout, ", wanted 0 <= p < 1"));
  if (o.targets.empty())
    refuse("--targets is empty; name linears such as q_proj,v_proj or all-linear");
  if (o.init != "default" && o.init != "gaussian" && o.init != "pissa")
    refuse(cat("--init is \"", o.init, "\", wanted default, gaussian or pissa"));
  if (o.dora && o.init == "pissa")
    refuse("--dora and --init pissa do not go together; leave one out");
  if (o.bias != "none" && o.bias != "all" && o.bias != "lora_only")
    refuse(cat("--bias is \"", o.bias, "\", wanted none, all or lora_only"));
  if (!(o.lora_plus_ratio > 0.0f))
    refuse(cat("--lora-plus-ratio is ", o.lora_plus_ratio, ", wanted more than 0"));
}

}  // namespace

Adapter Adapter::create(const LoraOptions& options, std::span<const LinearInfo> linears) {
  check_options(options);
  Adapter adapter;
  adapter.options_ = options;
  select_modules(options, linears, adapter.modules_, adapter.wholes_);
  if (adapter.modules_.empty())
    fail(ErrorCode::kInvalidArgument,
         "no linear is left to adapt; --targets, --exclude-modules, --layers-to-transform and "
         "--num-layers leave none");
  adapter.count_layers(linears);
  adapter.declare_tokens(linears);
  adapter.place();
  return adapter;
}

void Adapter::count_layers(std::span<const LinearInfo> linears) {
  for (const LinearInfo& l : linears) layers_ = std::max(layers_, l.layer + 1);
}

void Adapter::place() {
  const float b_rate = options_.lora_plus_ratio;
  int64_t frozen = 0;
  for (LoraModule& m : modules_) {
    if (m.kind != ModuleKind::kLinear && (options_.dora || options_.init == "pissa"))
      fail(ErrorCode::kUnsupported, m.module, " is adapted by plain LoRA only; leave ",
           options_.dora ? "DoRA" : "PiSSA", " out, or name linears of the blocks as targets");
    if (options_.init == "pissa" && m.rank > std::min(m.in, m.out))
      fail(ErrorCode::kInvalidArgument, m.module, " is [", m.out, ", ", m.in, "] and has no ",
           m.rank, " singular vectors; choose a smaller --rank");
  }
  for (size_t i = 0; i < modules_.size();) {
    size_t end = i;
    while (end < modules_.size() && modules_[end].group == modules_[i].group) ++end;
    const std::span group(modules_.data() + i, end - i);
    for (LoraModule& m : group)
      // The embedding's A lies transposed: a token's column is read as a row.
      m.a_offset = m.kind == ModuleKind::kEmbedding
                       ? layout_.add(m.module + ".lora_embedding_A", {m.in, m.rank}, 1.0f, true)
                       : layout_.add(m.module + ".lora_A", {m.rank, m.in});
    for (LoraModule& m : group)
      m.b_offset = m.kind == ModuleKind::kEmbedding
                       ? layout_.add(m.module + ".lora_embedding_B", {m.out, m.rank})
                       : layout_.add(m.module + ".lora_B", {m.out, m.rank}, b_rate);
    for (LoraModule& m : group)
      if (options_.dora)
        m.m_offset = layout_.add(m.module + ".lora_magnitude_vector", {m.out}, b_rate);
    if (options_.init == "pissa") {
      for (LoraModule& m : group) {
        m.a0_offset = frozen;
        frozen += m.rank * m.in;
      }
      for (LoraModule& m : group) {
        m.b0_offset = frozen;
        frozen += m.out * m.rank;
      }
    }
    i = end;
  }
  // As PEFT's LoRA+ has it: vectors go with B.
  for (WholeModule& w : wholes_)
    w.offset =
        layout_.add(tensor_of(w), w.weight_shape(), w.weight_shape().rank() == 1 ? b_rate : 1.0f);
  if (tokens_) {
    TokenRows& t = *tokens_;
    const int64_t n = t.count();
    t.offset =
        layout_.add(t.module + ".token_adapter.trainable_tokens_delta", {t.hidden, n}, 1.0f, true);
    auto take = [&](int64_t size) { return std::exchange(frozen, frozen + size); };
    t.selector = take(t.vocab * n);
    t.rows = take(n * t.hidden);
    t.turned = take(t.hidden * n);
    t.ones = take(n * n);
  }
  for (LoraModule& m : modules_) m.site = name_key(m.module);
  frozen_.assign(static_cast<size_t>(frozen), 0.0f);
}

std::vector<float> Adapter::initial_params(uint64_t seed) const {
  std::vector<float> params(static_cast<size_t>(param_count()), 0.0f);
  for (const LoraModule& m : modules_) {
    Rng rng(mix_key(seed, name_key(m.module)));
    if (m.kind == ModuleKind::kEmbedding) {
      for (int64_t i = 0; i < m.rank * m.out; ++i)
        params[static_cast<size_t>(m.b_offset + i)] = static_cast<float>(rng.normal());
      continue;
    }
    if (options_.init == "pissa") continue;
    const bool gaussian = options_.init == "gaussian";
    const float bound = 1.0f / std::sqrt(static_cast<float>(m.in));
    for (int64_t i = 0; i < m.rank * m.in; ++i)
      params[static_cast<size_t>(m.a_offset + i)] =
          gaussian ? static_cast<float>(rng.normal()) / static_cast<float>(m.rank)
                   : rng.uniform(-bound, bound);
  }
  return params;
}

bool Adapter::needs_weights() const {
  return options_.dora || options_.init == "pissa" || !wholes_.empty() || tokens_;
}

void Adapter::start_module(const LoraModule& m, const float* w, bool fresh,
                           std::span<float> params) {
  if (m.m_offset >= 0 && fresh)
    for (int64_t o = 0; o < m.out; ++o) {
      double square = 0;
      for (int64_t i = 0; i < m.in; ++i)
        square += static_cast<double>(w[o * m.in + i]) * static_cast<double>(w[o * m.in + i]);
      if (square == 0)
        fail(ErrorCode::kInvalidArgument, m.module, ": row ", o,
             " of its weight is all zeros, and DoRA divides by the length of each row; leave the "
             "module out (--exclude-modules), or train without --dora");
      params[static_cast<size_t>(m.m_offset + o)] = static_cast<float>(std::sqrt(square));
    }
  if (m.a0_offset < 0) return;
  const SingularVectors top = singular_vectors(w, m.out, m.in, m.rank);
  float *a0 = frozen_.data() + m.a0_offset, *b0 = frozen_.data() + m.b0_offset;
  for (int64_t r = 0; r < m.rank; ++r) {
    const float root = std::sqrt(top.s[static_cast<size_t>(r)] / m.scale);
    for (int64_t i = 0; i < m.in; ++i)
      a0[r * m.in + i] = root * top.v[static_cast<size_t>(r * m.in + i)];
    for (int64_t o = 0; o < m.out; ++o)
      b0[o * m.rank + r] = root * top.u[static_cast<size_t>(o * m.rank + r)];
  }
  if (!fresh) return;
  std::copy_n(a0, m.rank * m.in, params.data() + m.a_offset);
  std::copy_n(b0, m.out * m.rank, params.data() + m.b_offset);
}

void Adapter::start_whole(const WholeModule& m, const float* w, std::span<float> params) const {
  std::copy_n(w, m.weight_shape().elements(), params.data() + m.offset);
}

void Adapter::declare_tokens(std::span<const LinearInfo> linears) {
  const std::vector<int64_t>& ids = options_.trainable_token_indices;
  if (ids.empty()) return;
  constexpr size_t kMost = 1024;  // the selector has this many columns
  const std::string what = "--trainable-token-indices";
  if (ids.size() > kMost)
    fail(ErrorCode::kUnsupported, what, " names ", ids.size(), " tokens, at most ", kMost,
         " are trained by themselves; train embed_tokens whole (--modules-to-save)");
  for (const LinearInfo& l : linears) {
    if (l.kind != ModuleKind::kEmbedding) continue;
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] < 0 || ids[i] >= l.in || std::count(ids.begin(), ids.end(), ids[i]) > 1)
        fail(ErrorCode::kInvalidArgument, what, " has ", ids[i],
             ids[i] < 0 || ids[i] >= l.in ? cat(", but the model's tokens are 0 to ", l.in - 1)
                                          : std::string(" twice"));
    // The rows are the embedding's, and those of a head that is tied to it.
    for (const LinearInfo& other : linears)
      if ((other.kind == ModuleKind::kEmbedding || other.tied) &&
          (find(other.module) || find_whole(other.module)))
        fail(
            ErrorCode::kUnsupported, what, " and an adapter of ", other.module,
            " do not go together; leave one out (an adapter that PEFT has trained: merge it there, "
            "with merge_and_unload, and use the result as the model)");
    tokens_ = TokenRows{ids, l.module, l.in, l.out};
    return;
  }
}

void Adapter::start_tokens(const float* table, bool fresh, std::span<float> params) {
  const TokenRows& t = *tokens_;
  const int64_t n = t.count();
  for (int64_t k = 0; k < n; ++k) {
    const int64_t id = t.ids[static_cast<size_t>(k)];
    frozen_[static_cast<size_t>(t.selector + id * n + k)] = 1.0f;
    frozen_[static_cast<size_t>(t.ones + k * n + k)] = 1.0f;
    for (int64_t d = 0; d < t.hidden; ++d) {
      const float x = table[id * t.hidden + d];
      frozen_[static_cast<size_t>(t.rows + k * t.hidden + d)] = x;
      frozen_[static_cast<size_t>(t.turned + d * n + k)] = x;
      if (fresh) params[static_cast<size_t>(t.offset + d * n + k)] = x;
    }
  }
}

const LoraModule* Adapter::find(const std::string& module) const {
  for (const LoraModule& m : modules_)
    if (m.module == module) return &m;
  return nullptr;
}

const WholeModule* Adapter::find_whole(const std::string& module) const {
  for (const WholeModule& m : wholes_)
    if (m.module == module) return &m;
  return nullptr;
}

void Adapter::leave_whole(const std::string& module) {
  std::erase_if(wholes_, [&](const WholeModule& m) { return m.module == module; });
}

std::string Adapter::tensor_of(const WholeModule& m) const {
  if (m.kind != ModuleKind::kBias) return m.module + ".weight";
  // PEFT moves what it adapts into a module beside the pair.
  const std::string of = m.module.substr(0, m.module.rfind('.'));
  return find(of) ? of + ".base_layer.bias" : m.module;
}

}  // namespace wick
