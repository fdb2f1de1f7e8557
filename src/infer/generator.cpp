// SPDX-License-Identifier: Apache-2.0
#include "infer/generator.h"

#include <algorithm>
#include <chrono>

#include "infer/stop_text.h"

namespace wick {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Steps that a walk is ahead of the host: few at first, so that text comes early.
constexpr int64_t kMostAhead = 16;
static_assert(kMostAhead <= DecoderEngine::kMostSteps);

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

// One prompt on its way to a text.
struct TextGenerator::Sequence {
  Sequence(const Tokenizer& tokenizer, const DecodeOptions& options, int64_t vocab)
      : sampler(options.sample, vocab), decoder(tokenizer), stop_text(options.stop) {}

  Sampler sampler;
  StreamDecoder decoder;
  StopText stop_text;
  std::vector<int32_t> history;  // prompt and what was generated
  Decoded result;
  Clock::time_point started, prompt_done;
  bool done = false;

  // How the device draws the next token; none: the likeliest. Requires: sampler.draws().
  std::vector<DrawHow> how() const {
    DrawHow next = *sampler.draws();
    if (next.temperature == 0) return {};
    next.position = static_cast<int32_t>(history.size());
    return {next};
  }

  // Draws the next token from its logits and takes it.
  void draw(std::span<float> logits, const DecodeOptions& options, std::string& piece) {
    take(sampler.sample(logits, history, static_cast<int64_t>(history.size())), options, piece);
  }

  // Takes the next token; `piece` receives text that is final.
  void take(int32_t id, const DecodeOptions& options, std::string& piece) {
    if (id < 0) Sampler::fail_without_numbers();
    if (result.tokens.empty()) result.first_token_seconds = seconds_since(started);
    if (contains(options.stop_tokens, id)) {
      finish("stop", piece);
      return;
    }
    history.push_back(id);
    result.tokens.push_back(id);
    piece += stop_text.push(decoder.push(id));
    if (stop_text.found())
      finish("stop", piece);
    else if (static_cast<int64_t>(result.tokens.size()) >= options.max_tokens)
      finish("length", piece);
  }

  void finish(const char* reason, std::string& piece) {
    if (!stop_text.found()) {
      piece += stop_text.push(decoder.finish());
      if (!stop_text.found()) piece += stop_text.finish();
    }
    result.finish_reason = reason;
    result.generation_seconds = seconds_since(prompt_done);
    done = true;
  }
};

TextGenerator::TextGenerator(Backend& backend, const ModelConfig& config, ModelWeights& weights,
                             const Tokenizer& tokenizer, ParamSource source, BufferPtr params)
    : backend_(backend),
      config_(config),
      weights_(weights),
      tokenizer_(tokenizer),
      source_(source),
      params_(std::move(params)) {}

void TextGenerator::check_prompt(std::span<const int32_t> prompt, const DecodeOptions& options,
                                 const std::string& where) const {
  if (prompt.empty())
    fail(ErrorCode::kInvalidArgument, where, "the prompt is empty; give some text");
  if (options.max_tokens < 1)
    fail(ErrorCode::kInvalidArgument, "--max-tokens is ", options.max_tokens, ", wanted 1 or more");
  for (int32_t id : prompt)
    if (id < 0 || id >= config_.vocab)
      fail(ErrorCode::kInvalidArgument, where, "the prompt has token ", id,
           ", but the model's vocabulary "
           "has ",
           config_.vocab, " entries; does the tokenizer belong to this model?");
  if (static_cast<int64_t>(prompt.size()) >= config_.max_positions)
    fail(ErrorCode::kInvalidArgument, where, "the prompt has ", prompt.size(),
         " tokens and the model's context ", config_.max_positions, "; shorten it");
}

// Rounded up so that a conversation does not need a new cache at each turn.
int64_t TextGenerator::context_for(const ModelConfig& config, int64_t tokens) {
  return std::min((tokens + 255) / 256 * 256, config.max_positions);
}

void TextGenerator::make_engine(int64_t slots, int64_t context,
                                const std::function<bool()>& should_stop) {
  context = context_for(config_, context);
  if (engine_ && slots == 1 && engine_->slots() == 1 && engine_->context() < context) {
    std::unique_ptr<DecoderEngine> grown = std::move(engine_);
    grown->grow(context, static_cast<int64_t>(cached_.size()));
    engine_ = std::move(grown);
  }
  if (!engine_ || engine_->slots() != slots || engine_->context() < context) {
    engine_.reset();
    cached_.clear();
    engine_ = std::make_unique<DecoderEngine>(backend_, config_, weights_, source_, params_, slots,
                                              context);
  }
  engine_->stop_when(should_stop);
}

Decoded TextGenerator::generate(std::span<const int32_t> prompt, const DecodeOptions& options,
                                const OnText& on_text) {
  check_prompt(prompt, options);
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t room = config_.max_positions - prompt_tokens;
  DecodeOptions bounded = options;
  bounded.max_tokens = std::min(options.max_tokens, room);
  const StopWhileReading stop(weights_, options.should_stop);
  make_engine(1, prompt_tokens + bounded.max_tokens, options.should_stop);

  Sequence s(tokenizer_, bounded, config_.vocab);
  s.started = Clock::now();
  s.history.assign(prompt.begin(), prompt.end());
  s.result.prompt_tokens = prompt_tokens;
  size_t kept = 0;
  // The last token is always run again: its logits are needed.
  while (kept + 1 < prompt.size() && kept < cached_.size() && cached_[kept] == prompt[kept]) ++kept;
  s.result.reused_tokens = static_cast<int64_t>(kept);
  std::vector<SlotToken> tokens;
  for (size_t i = kept; i < prompt.size(); ++i)
    tokens.push_back({prompt[i], 0, static_cast<int32_t>(i), i + 1 == prompt.size()});
  cached_.resize(kept);
  auto prompt_done = [&] {
    cached_.assign(prompt.begin(), prompt.end());
    s.result.prompt_seconds = seconds_since(s.started);
    s.prompt_done = Clock::now();
  };
  auto tell = [&](const std::string& piece) {
    s.result.text += piece;
    bool wanted = !options.should_stop || !options.should_stop();
    if (on_text && !piece.empty()) wanted &= on_text(piece);
    if (wanted || s.done) return;
    std::string rest;
    s.finish("cancelled", rest);
    s.result.text += rest;
  };
  if (engine_->can_walk() && s.sampler.draws()) {
    std::vector<int32_t> drawn;
    engine_->run_drawn(tokens, drawn, s.how());
    prompt_done();
    walk(s, bounded, drawn[0], tell);
    return s.result;
  }
  std::vector<float> logits;
  engine_->run(tokens, logits);
  prompt_done();
  while (true) {
    std::string piece;
    s.draw(logits, bounded, piece);
    tell(piece);
    if (s.done) break;
    int32_t position = static_cast<int32_t>(s.history.size() - 1);
    SlotToken next{s.history.back(), 0, position, true};
    engine_->run({&next, 1}, logits);
    cached_.push_back(next.id);
  }
  return s.result;
}

// What is drawn behind the end of the text is dropped: its rows of the cache are written again.
void TextGenerator::walk(Sequence& s, const DecodeOptions& options, int32_t first,
                         const std::function<void(const std::string&)>& tell) {
  std::vector<int32_t> drawn = {first};
  int64_t ahead = 1;
  bool started = false;
  while (true) {
    for (int32_t id : drawn) {
      if (started) cached_.push_back(s.history.back());
      std::string piece;
      s.take(id, options, piece);
      tell(piece);
      if (s.done) return;
      if (!started) {
        const SlotToken next{id, 0, static_cast<int32_t>(s.history.size() - 1), true};
        engine_->walk_from({&next, 1}, s.how());
        started = true;
      }
    }
    const int64_t left = options.max_tokens - static_cast<int64_t>(s.result.tokens.size());
    const int64_t steps = std::min(ahead, left);
    engine_->walk(steps);
    engine_->walked(steps, drawn);
    ahead = std::min(2 * ahead, kMostAhead);
  }
}

std::vector<Decoded> TextGenerator::generate_many(const std::vector<std::vector<int32_t>>& prompts,
                                                  const DecodeOptions& options, int64_t slots,
                                                  const OnDone& on_done) {
  int64_t longest = 0;
  for (const auto& prompt : prompts) {
    check_prompt(prompt, options, cat("text ", &prompt - prompts.data(), " (from 0): "));
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  slots = std::max<int64_t>(1, std::min(slots, static_cast<int64_t>(prompts.size())));
  const StopWhileReading stop(weights_, options.should_stop);
  const int64_t room = config_.max_positions - longest;
  make_engine(slots, longest + std::min(options.max_tokens, room), options.should_stop);
  cached_.clear();

  std::vector<Decoded> results(prompts.size());
  struct Active {
    size_t index;
    std::unique_ptr<Sequence> sequence;
    DecodeOptions options;
  };
  std::vector<Active> active(static_cast<size_t>(slots));
  size_t next_prompt = 0;
  std::vector<float> logits;
  const size_t vocab = static_cast<size_t>(config_.vocab);
  bool cancelled = false, changed = true;
  size_t ended = 0;
  auto is_stopped = [&] {
    cancelled |= options.should_stop && options.should_stop();
    return cancelled;
  };

  const bool walks =
      engine_->can_walk() && Sampler(options.sample, config_.vocab).draws().has_value();
  std::vector<int32_t> drawn;

  auto settle = [&](Active& a, const std::string& piece) {
    a.sequence->result.text += piece;
    if (!a.sequence->done) return;
    results[a.index] = std::move(a.sequence->result);
    a.sequence.reset();
    ++ended;
    if (on_done && !on_done(a.index, results[a.index])) cancelled = true;
  };

  while (!is_stopped()) {
    for (size_t slot = 0; slot < active.size() && !cancelled; ++slot) {
      while (!active[slot].sequence && next_prompt < prompts.size() && !is_stopped()) {
        Active& a = active[slot];
        const std::vector<int32_t>& prompt = prompts[next_prompt];
        a.index = next_prompt++;
        a.options = options;
        a.options.max_tokens =
            std::min(options.max_tokens, engine_->context() - static_cast<int64_t>(prompt.size()));
        // Each prompt has its own stream of random numbers, whichever slot it gets.
        a.options.sample.seed = options.sample.seed + a.index;
        a.sequence = std::make_unique<Sequence>(tokenizer_, a.options, config_.vocab);
        a.sequence->started = Clock::now();
        a.sequence->history = prompt;
        a.sequence->result.prompt_tokens = static_cast<int64_t>(prompt.size());
        std::vector<SlotToken> tokens;
        for (size_t i = 0; i < prompt.size(); ++i)
          tokens.push_back({prompt[i], static_cast<int32_t>(slot), static_cast<int32_t>(i),
                            i + 1 == prompt.size()});
        if (walks)
          engine_->run_drawn(tokens, drawn, a.sequence->how());
        else
          engine_->run(tokens, logits);
        a.sequence->result.prompt_seconds = seconds_since(a.sequence->started);
        a.sequence->prompt_done = Clock::now();
        std::string piece;
        if (walks)
          a.sequence->take(drawn[0], a.options, piece);
        else
          a.sequence->draw(logits, a.options, piece);
        settle(a, piece);
        changed = true;
      }
    }
    std::vector<SlotToken> tokens;
    std::vector<size_t> owners;
    std::vector<DrawHow> how;
    for (size_t slot = 0; slot < active.size(); ++slot) {
      if (!active[slot].sequence) continue;
      const std::vector<int32_t>& history = active[slot].sequence->history;
      tokens.push_back({history.back(), static_cast<int32_t>(slot),
                        static_cast<int32_t>(history.size() - 1), true});
      owners.push_back(slot);
      if (walks)
        for (const DrawHow& h : active[slot].sequence->how()) how.push_back(h);
    }
    if (tokens.empty()) break;
    if (!walks) {
      engine_->run(tokens, logits);
      for (size_t i = 0; i < owners.size() && !cancelled; ++i) {
        Active& a = active[owners[i]];
        std::string piece;
        a.sequence->draw(std::span(logits).subspan(i * vocab, vocab), a.options, piece);
        settle(a, piece);
      }
      continue;
    }
    if (changed) engine_->walk_from(tokens, how);
    changed = false;
    int64_t steps = kMostAhead;
    for (size_t slot : owners) {
      const Active& a = active[slot];
      steps = std::min(
          steps, a.options.max_tokens - static_cast<int64_t>(a.sequence->result.tokens.size()));
    }
    engine_->walk(steps);
    engine_->walked(steps, drawn);
    for (size_t slot : owners)
      for (int64_t i = 0; i < steps && active[slot].sequence && !cancelled; ++i) {
        Active& a = active[slot];
        std::string piece;
        a.sequence->take(drawn[static_cast<size_t>(i * slots) + slot], a.options, piece);
        settle(a, piece);
        changed |= !a.sequence;
      }
  }
  if (cancelled && ended == 0) fail(ErrorCode::kCancelled, "stopped before an answer had ended");
  return results;
}

}  // namespace wick
