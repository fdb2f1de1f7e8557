// SPDX-License-Identifier: Apache-2.0
// attention backward in tiles, from bf16 operands. Probabilities are made again from q, k and lse:
//   p = 2^(scale' q·k - lse'), ds = p (dy·v - dy·y)
//   dv = Σ p dy, dk = scale Σ ds q, dq = scale Σ ds k
// On AMX bound by what the five products read from the second cache, else by the products. T = 512
// causal, 14 heads of 64 on 2: 2.3 ms on one thread of Emerald Rapids with AMX, 3.7 on two of Zen 4
// by dots (2026-11).
//
// A part is a stretch of rows that see no key of another part: one packed segment. The same bits
// come out whether one task makes dq, dk and dv of a part in one pass, or, where parts are too few
// for the threads, tasks own rows (dq) or keys (dk, dv) and make the probabilities twice.
#include "backend/cpu/attention_parts.h"
#include "backend/cpu/tile_attention.h"
#include "backend/cpu/tile_attention_bwd-inl.h"

#if WICK_CPU_BF16
#include "base/threads.h"

namespace wick::cpu::tile_attention {
namespace {

Backward backward_of(const StepArgs& args) {
  return {Heads(attr<AttentionAttr>(*args.step)),
          Halves(args.in[0]),
          Halves(args.in[1]),
          Halves(args.in[2]),
          Halves(args.in[3]),
          Halves(args.in[4]),
          Halves(args.out[0]),
          Halves(args.out[1]),
          Halves(args.out[2]),
          args.in[5].as<const float>(),
          args.in[5].ld,
          args.in[1].rows,
          args.in[6].as<const int32_t>()};
}

template <typename Multiplier>
void attention_bwd(const StepArgs& args) {
  const Backward b = backward_of(args);
  const Heads& h = b.heads;
  std::byte* base = aligned(args.scratch);
  Carve carve(base);
  AttentionPart* parts = carve.take<AttentionPart>(b.tokens);
  std::byte* works = base + carve.used();
  const int64_t work_bytes = Work(h, b.tokens, nullptr).bytes;
  const int64_t count = find_parts(b.begin, b.tokens, parts);
  const Wants wants{args.out[0] ? true : false, args.out[1] ? true : false,
                    args.out[2] ? true : false};
  const bool keys_wanted = wants.dk || wants.dv;
  const bool whole = parts_suffice(parts, count, h.kv_heads, args.pool->threads(), kMostKeys);
  const int64_t positions = chunk_positions(h);
  // How many tasks a part is cut into: those that own keys, then those that own rows.
  auto key_tasks = [&](const AttentionPart& p) {
    if (whole || p.lone) return int64_t{1};
    return keys_wanted ? up(p.length(), kOwned) / kOwned : 0;
  };
  auto row_tasks = [&](const AttentionPart& p) {
    return whole || p.lone || !wants.dq ? 0 : up(p.length(), positions) / positions;
  };
  int64_t tasks = 0;
  for (int64_t i = 0; i < count; ++i) tasks += key_tasks(parts[i]) + row_tasks(parts[i]);
  args.pool->parallel(tasks * h.kv_heads, [&](int64_t task, int worker) {
    const int64_t kv = task % h.kv_heads;
    int64_t i = task / h.kv_heads;
    const AttentionPart* part = parts;
    for (int64_t n; i >= (n = key_tasks(*part) + row_tasks(*part)); ++part) i -= n;
    if (part->lone) return lone_rows(b, kv, part->start, part->stop);
    const Work w(h, b.tokens, works + worker * work_bytes);
    Multiplier::begin();
    if (whole) {
      make_keys<Multiplier>(b, w, kv, part->start, part->stop, 0, part->length(), wants);
    } else if (i < key_tasks(*part)) {
      const int64_t from = i * kOwned;
      make_keys<Multiplier>(b, w, kv, part->start, part->stop, from,
                            least(part->length(), from + kOwned), {false, wants.dk, wants.dv});
    } else {
      // Later rows see more keys.
      const int64_t t0 = part->start + (row_tasks(*part) - 1 - (i - key_tasks(*part))) * positions;
      chunk<Multiplier>(b, w, kv, part->start, t0, least(part->stop, t0 + positions), 0,
                        part->length(), {true, false, false});
    }
    Multiplier::end();
  });
}

size_t attention_bwd_scratch(const StepArgs& args, int threads) {
  const Heads h(attr<AttentionAttr>(*args.step));
  const int64_t tokens = args.in[1].rows;
  Carve carve(nullptr);
  carve.take<AttentionPart>(tokens);
  return static_cast<size_t>(64 + carve.used() + Work(h, tokens, nullptr).bytes * threads);
}

bool attention_bwd_accepts(const StepArgs& args) {
  for (size_t i = 0; i < 5; ++i)
    if (!is_bf16(args.in[i])) return false;
  for (const Operand& o : args.out)
    if (!is_bf16(o)) return false;
  return takes_heads(args);
}

Candidate backward(Rung rung) {
  return {Op::kAttention,        Dir::kBackward,
          "attention_bwd_tiles", rung == Rung::kAmx ? attention_bwd<AmxTiles> : attention_bwd<Dots>,
          attention_bwd_accepts, attention_bwd_scratch};
}

}  // namespace
}  // namespace wick::cpu::tile_attention

namespace wick::cpu {

Candidates tile_attention_candidates(Rung rung) {
  using tile_attention::backward, tile_attention::forward;
  static const Candidate kAmx[] = {forward(Rung::kAmx), backward(Rung::kAmx)};
  static const Candidate kDots[] = {forward(Rung::kAvx512Bf16), backward(Rung::kAvx512Bf16)};
  if (rung == Rung::kAmx) return kAmx;
  return rung == Rung::kAvx512Bf16 ? Candidates(kDots) : Candidates();
}

}  // namespace wick::cpu

#else

namespace wick::cpu {
Candidates tile_attention_candidates(Rung) { return {}; }
}  // namespace wick::cpu

#endif
