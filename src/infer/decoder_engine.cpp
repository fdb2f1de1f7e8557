// SPDX-License-Identifier: Apache-2.0
#include "infer/decoder_engine.h"

#include <algorithm>

namespace wick {

// Powers of two: at most half of a bucket is padding, and prompts of all lengths share programs.
int64_t DecoderEngine::tokens_of_run(int64_t tokens) {
  int64_t size = 1;
  while (size < tokens) size *= 2;
  return std::min(size, kMostTokens);
}

DecoderEngine::DecoderEngine(Backend& backend, const ModelConfig& config, ModelWeights& weights,
                             ParamSource source, BufferPtr params, int64_t slots, int64_t context)
    : backend_(backend),
      config_(config),
      weights_(weights),
      source_(source),
      params_(std::move(params)),
      slots_(slots),
      context_(context) {
  const int64_t count = slots * context * config.kv_width();
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    cache_k_.push_back(backend.allocate(weights.compute(), count));
    cache_v_.push_back(backend.allocate(weights.compute(), count));
  }
}

int64_t DecoderEngine::cache_bytes() const {
  int64_t bytes = 0;
  for (const auto* cache : {&cache_k_, &cache_v_})
    for (const BufferPtr& layer : *cache) bytes += static_cast<int64_t>(layer->bytes());
  return bytes;
}

void DecoderEngine::grow(int64_t context, int64_t tokens) {
  WICK_DCHECK(slots_ == 1 && tokens <= context_ && context >= context_);
  // Programs hold what they were compiled with; without them each old buffer goes as soon as it is
  // copied.
  buckets_.clear();
  rope_.reset();
  const DType type = weights_.compute();
  const int64_t kept = tokens * config_.kv_width();
  std::vector<std::byte> rows(static_cast<size_t>(kept) * dtype_bytes(type));
  for (auto* cache : {&cache_k_, &cache_v_})
    for (BufferPtr& layer : *cache) {
      if (kept > 0) backend_.download(*layer, type, 0, kept, rows.data());
      layer.reset();
      layer = backend_.allocate(type, context * config_.kv_width());
      if (kept > 0) backend_.upload(*layer, type, 0, kept, rows.data());
    }
  context_ = context;
}

DecoderPlanOptions DecoderEngine::bucket_options(const Backend& backend, ParamSource source,
                                                 int64_t slots, int64_t context, int64_t tokens,
                                                 Tail tail) {
  DecoderPlanOptions o;
  o.tokens = tokens;
  o.positions = context;
  o.source = std::move(source);
  o.cache_rows = slots * context;
  o.walks = walks(tail);
  if (!o.walks) o.rows = std::min(tokens, slots);
  o.skips_rows = backend.skips_rows();
  return o;
}

DecoderEngine::Bucket DecoderEngine::record_bucket(const ModelConfig& config,
                                                   const ModelWeights& weights,
                                                   const DecoderPlanOptions& options, Tail tail) {
  Bucket b;
  b.plan = std::make_unique<DecoderPlan>(config, weights, options);
  Recorder& r = b.plan->recorder();
  b.rows = b.plan->rows();
  b.logits = b.plan->logits(b.plan->hidden());
  if (walks(tail)) b.log = r.state("log", {kMostSteps, options.tokens}, DType::kI32);
  if (draws(tail)) {
    const Shape shape{b.plan->plan().value(b.logits).shape.rows(), kDrawWords};
    b.how = walks(tail) ? r.state("how", shape, DType::kI32) : r.feed("how", shape, DType::kI32);
  }
  if (tail != Tail::kLogits) b.tokens = r.sample(b.logits, b.plan->place(), b.log, b.how);
  if (!walks(tail)) b.plan->plan().results.push_back(tail == Tail::kLogits ? b.logits : b.tokens);
  fuse(b.plan->plan());
  check(b.plan->plan());
  return b;
}

std::unique_ptr<DecoderPlan> DecoderEngine::record(const ModelConfig& config,
                                                   const ModelWeights& weights,
                                                   const Backend& backend, ParamSource source,
                                                   int64_t slots, int64_t context, int64_t tokens) {
  const DecoderPlanOptions o = bucket_options(backend, std::move(source), slots, context,
                                              tokens_of_run(tokens), Tail::kLogits);
  return std::move(record_bucket(config, weights, o, Tail::kLogits).plan);
}

DecoderEngine::Bucket& DecoderEngine::bucket(int64_t tokens, Tail tail) {
  Bucket& b = buckets_[{tokens, tail}];
  if (b.program) return b;
  b = record_bucket(config_, weights_,
                    bucket_options(backend_, source_, slots_, context_, tokens, tail), tail);

  // One arena for all buckets, as large as the largest compiled so far needs; the smaller programs
  // keep the one that they were compiled with.
  size_t wanted = static_cast<size_t>(forecast_memory(b.plan->plan(), backend_).arena);
  if (!arena_ || arena_->bytes() < wanted)
    arena_ = backend_.allocate(DType::kU8, static_cast<int64_t>(wanted));
  Bindings bindings = b.plan->bind(backend_, weights_);
  const DecoderContext& c = b.plan->context();
  if (rope_)
    bindings[static_cast<size_t>(c.rope_table)] = rope_;
  else
    rope_ = bindings[static_cast<size_t>(c.rope_table)];
  for (size_t layer = 0; layer < cache_k_.size(); ++layer) {
    bindings[static_cast<size_t>(c.cache_k[layer])] = cache_k_[layer];
    bindings[static_cast<size_t>(c.cache_v[layer])] = cache_v_[layer];
  }
  if (walks(tail)) {
    bindings[static_cast<size_t>(b.plan->plan().root(b.plan->place()))] = place_;
    bindings[static_cast<size_t>(c.begin)] = begin_;
    bindings[static_cast<size_t>(b.log)] = log_;
    if (draws(tail)) bindings[static_cast<size_t>(b.how)] = how_;
  }
  if (c.adapter.params != kNone) bindings[static_cast<size_t>(c.adapter.params)] = params_;
  b.program = backend_.compile(b.plan->plan(), bindings, arena_);
  return b;
}

const Plan& DecoderEngine::plan(int64_t tokens) {
  return bucket(tokens_of_run(tokens), Tail::kLogits).plan->plan();
}

double DecoderEngine::flops(int64_t tokens) {
  double sum = 0;
  for (int64_t first = 0; first < tokens; first += kMostTokens) {
    const int64_t last = std::min(tokens, first + kMostTokens);
    sum += plan_flops(plan(last - first), token_filling(first, last, 1));
  }
  return sum;
}

void DecoderEngine::run(std::span<const SlotToken> tokens, std::vector<float>& logits,
                        std::vector<double>* step_seconds) {
  logits.clear();
  run_all(tokens, {.tail = Tail::kLogits, .logits = &logits}, step_seconds);
}

void DecoderEngine::run_drawn(std::span<const SlotToken> tokens, std::vector<int32_t>& drawn,
                              std::span<const DrawHow> how) {
  drawn.clear();
  run_all(tokens,
          {.tail = how.empty() ? Tail::kTokens : Tail::kDrawnTokens, .drawn = &drawn, .how = how},
          nullptr);
}

void DecoderEngine::run_all(std::span<const SlotToken> tokens, const Results& results,
                            std::vector<double>* step_seconds) {
  while (!tokens.empty()) {
    size_t n = std::min(tokens.size(), static_cast<size_t>(kMostTokens));
    run_chunk(tokens.first(n), results, step_seconds);
    tokens = tokens.subspan(n);
    if (!tokens.empty() && stop_ && stop_())
      fail(ErrorCode::kCancelled, "stopped while the prompt was read");
  }
}

void DecoderEngine::run_chunk(std::span<const SlotToken> tokens, const Results& results,
                              std::vector<double>* step_seconds) {
  Bucket& b = bucket(tokens_of_run(static_cast<int64_t>(tokens.size())), results.tail);
  const DecoderContext& c = b.plan->context();
  const size_t t = static_cast<size_t>(c.tokens);
  // A padding token has an empty range to attend to and no row in the cache.
  std::vector<int32_t> ids(t, 0), positions(t, 0), begin(t, 0), end(t, 0), cache(t, -1);
  std::vector<int32_t> rows(static_cast<size_t>(b.plan->plan().value(b.rows).shape[0]), -1);
  size_t wanted = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const SlotToken& token = tokens[i];
    int32_t first = token.slot * static_cast<int32_t>(context_);
    WICK_DCHECK(token.position < context_ && token.slot < slots_);
    ids[i] = token.id;
    positions[i] = token.position;
    begin[i] = first;
    end[i] = first + token.position + 1;
    cache[i] = first + token.position;
    if (token.wants_logits) rows[wanted++] = static_cast<int32_t>(i);
  }
  auto feed = [&](ValueId id, const std::vector<int32_t>& data) {
    b.program->feed(id, data.data(), data.size() * sizeof(int32_t));
  };
  feed(c.ids, ids);
  feed(c.positions, positions);
  feed(c.begin, begin);
  feed(c.end, end);
  feed(c.cache_rows, cache);
  feed(b.rows, rows);
  if (b.how != kNone) {
    std::vector<int32_t> words(rows.size() * kDrawWords, 0);
    for (size_t i = 0; i < wanted; ++i)
      to_words(results.how[results.drawn->size() + i], words.data() + i * kDrawWords);
    feed(b.how, words);
  }
  if (step_seconds) {
    *step_seconds = b.program->run_timed();
  } else {
    b.program->run();
    b.program->wait();
  }
  if (wanted == 0) return;
  auto append = [&](ValueId id, size_t row, auto& to) {
    const size_t before = to.size();
    to.resize(before + rows.size() * row);
    b.program->read(id, to.data() + before, rows.size() * row * sizeof(to[0]));
    to.resize(before + wanted * row);
  };
  if (results.tail == Tail::kLogits)
    append(b.logits, static_cast<size_t>(config_.vocab), *results.logits);
  else
    append(b.tokens, 1, *results.drawn);
}

void DecoderEngine::walk_from(std::span<const SlotToken> tokens, std::span<const DrawHow> how) {
  if (!place_) {
    place_ = backend_.allocate(DType::kI32, 4 * slots_);
    begin_ = backend_.allocate(DType::kI32, slots_);
    log_ = backend_.allocate(DType::kI32, kMostSteps * slots_);
    how_ = backend_.allocate(DType::kI32, kDrawWords * slots_);
  }
  walk_ = how.empty() ? Tail::kWalk : Tail::kDrawnWalk;
  const size_t slots = static_cast<size_t>(slots_);
  std::vector<int32_t> place(4 * slots, 0), begin(slots, 0), words(kDrawWords * slots, 0);
  std::fill(place.begin() + static_cast<ptrdiff_t>(3 * slots), place.end(), -1);
  walking_.clear();
  for (const SlotToken& token : tokens) {
    const size_t slot = static_cast<size_t>(token.slot);
    const int32_t first = token.slot * static_cast<int32_t>(context_);
    place[slot] = token.id;
    place[slots + slot] = token.position;
    place[2 * slots + slot] = first + token.position + 1;
    place[3 * slots + slot] = first + token.position;
    begin[slot] = first;
    if (!how.empty()) to_words(how[walking_.size()], words.data() + slot * kDrawWords);
    walking_.push_back({token.slot, token.position});
  }
  backend_.upload(*place_, DType::kI32, 0, 4 * slots_, place.data());
  backend_.upload(*begin_, DType::kI32, 0, slots_, begin.data());
  if (!how.empty()) backend_.upload(*how_, DType::kI32, 0, kDrawWords * slots_, words.data());
}

void DecoderEngine::walk(int64_t steps) {
  WICK_DCHECK(steps <= kMostSteps);
  Bucket& b = bucket(slots_, walk_);
  for (int64_t i = 0; i < steps; ++i) b.program->run();
  for (auto& [slot, position] : walking_) position += steps;
}

void DecoderEngine::walked(int64_t steps, std::vector<int32_t>& drawn) {
  bucket(slots_, walk_).program->wait();
  std::vector<int32_t> log(static_cast<size_t>(kMostSteps * slots_));
  backend_.download(*log_, DType::kI32, 0, kMostSteps * slots_, log.data());
  drawn.assign(static_cast<size_t>(steps * slots_), -1);
  for (const auto& [slot, position] : walking_)
    for (int64_t i = 0; i < steps; ++i)
      drawn[static_cast<size_t>(i * slots_ + slot)] =
          log[static_cast<size_t>((position - steps + 1 + i) % kMostSteps * slots_ + slot)];
}

}  // namespace wick
