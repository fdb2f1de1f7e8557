// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <vector>

#include "backend/cuda/skinny.h"
#include "backend/cuda/skinny_kernel.cuh"

namespace wick::cuda {
namespace {

constexpr int64_t kTallRows = 2048;    // from here on the tall kernel
constexpr int64_t kSplitDepth = 1024;  // longer rows are shared by
constexpr int kDepthSplits = 4;        // blocks
constexpr int64_t kLongDepth = 8192;   // and such rows by a whole cluster
constexpr int64_t kSplitTokens = 256, kManyTokens = 2048, kFewColumns = 2048;
// Ranks of a tall product, so that two blocks fit a multiprocessor; what is left of them is a
// product of its own, which reads `a` again.
constexpr int64_t kTallRanks = 32;
// y that does not stay in the second cache, so that adding to it costs twice its bytes.
constexpr int64_t kManyElements = 12 << 20;
// h is made again by every block that spreads it.
constexpr int64_t kChainedDepth = 1024, kChainedChunks = 8;
// Fewer rows are too few blocks to make all columns: then the wide product gets blocks of its own.
constexpr int64_t kChainedRows = 128;
constexpr int64_t kMostBlocks = 1 << 24;    // of a launch
constexpr int64_t kMostAskedFor = 1 << 20;  // bytes of parameters that are asked for early

// Bytes that an operand covers: rows of `width`, `stride` apart.
struct Area {
  uintptr_t first;
  int64_t rows, width, stride;

  explicit Area(const Operand& o)
      : first(reinterpret_cast<uintptr_t>(o.data)),
        rows(o.rows),
        width(o.cols * static_cast<int64_t>(dtype_bytes(o.dtype))),
        stride(o.ld * static_cast<int64_t>(dtype_bytes(o.dtype))) {}
  uintptr_t end() const { return first + static_cast<uintptr_t>((rows - 1) * stride + width); }
  bool meets(const Area& other) const {
    if (first >= other.end() || other.first >= end()) return false;
    if (stride != other.stride || stride == 0) return true;
    // Columns of one matrix: apart where neither reaches into the other within a row.
    const auto shift = (static_cast<int64_t>(other.first - first) % stride + stride) % stride;
    return shift < width || shift + other.width > stride;
  }
};

bool meets(const std::vector<Area>& some, const Area& area) {
  return std::any_of(some.begin(), some.end(), [&](const Area& s) { return s.meets(area); });
}

}  // namespace

struct SkinnyList::Impl {
  SkinnyGroup group{};
  int64_t most_rank = 0, blocks = 0;  // of all but wide products; an upper bound
  bool turned = false, clusters = false, tall = false, chained = false;
  std::vector<Area> read, written;

  // A product that waits (defer_product), and how many columns of its y spreads of the list add to.
  struct Waiting {
    Product how;
    Operand x, w, y, bias;
    int64_t added_to = 0;
  };
  std::optional<Waiting> waiting;

  // Whether `y` is columns of what the waiting product makes.
  bool adds_to_waiting(const Operand& y) const {
    if (!waiting) return false;
    const Operand& all = waiting->y;
    const int64_t column = y.as<const Bf16>() - all.as<const Bf16>();
    return column >= 0 && column + y.cols <= all.cols && y.ld == all.ld && y.rows == all.rows;
  }
  bool must_follow_waiting(const Operand& a, const Operand& b, const Operand& y) const {
    if (!waiting) return false;
    const Area made(waiting->y), to(y);
    return made.meets(Area(a)) || made.meets(Area(b)) || made.meets(to) ||
           Area(waiting->x).meets(to) || Area(waiting->w).meets(to) ||
           (waiting->bias && Area(waiting->bias).meets(to));
  }

  // Whether a product that touches these must come after those of the list.
  bool conflicts(const Operand& a, const Operand& b, const Operand& y) const {
    return meets(written, Area(a)) || waits(b, y);
  }
  bool waits(const Operand& b, const Operand& y) const {
    return meets(written, Area(b)) || meets(written, Area(y)) || meets(read, Area(y));
  }
  void note(const Operand& a, const Operand& b, const Operand& y) {
    read.insert(read.end(), {Area(a), Area(b)});
    written.push_back(Area(y));
  }
  void add(SkinnyProblem& p, const Spread& s) {
    if (p.spreads == 0) p.first_spread = group.spread_count;
    group.spread[group.spread_count] = s;
    group.spread[group.spread_count++].first_chunk = p.chunks;
    ++p.spreads;
    p.chunks += static_cast<int>(divide_up(s.n, kSpreadCols));
  }
};

SkinnyList::SkinnyList() : impl(std::make_unique<Impl>()) {}
SkinnyList::~SkinnyList() = default;

namespace {

// Rows of a block of a wide product: fewer where there are not blocks for all multiprocessors.
int wide_tile_rows(const Queue& queue, const SkinnyProblem& p) {
  int rows = 128;
  while (rows > 32 && divide_up(p.m, rows) * p.chunks < int64_t{2} * queue.sms) rows /= 2;
  return rows;
}

// How many blocks share the columns of a tile of rows: those of a narrow product make it again.
int parts_of(const Queue& queue, const SkinnyProblem& p, int64_t tiles) {
  const bool narrow = p.kind == SkinnyKind::kNarrow;
  const int64_t wanted = std::clamp<int64_t>(
      narrow ? int64_t{3} * queue.sms / tiles : int64_t{6} * queue.sms / tiles, 1, p.chunks);
  return static_cast<int>(narrow ? wanted : divide_up(p.chunks, divide_up(p.chunks, wanted)));
}

// Blocks of each problem, one after the other; whole clusters where there are some.
unsigned share_out(const Queue& queue, SkinnyList::Impl& list, int narrow_rows, int turned_cols) {
  // Longest first: those that sum over many rows.
  std::stable_partition(list.group.at, list.group.at + list.group.count,
                        [](const SkinnyProblem& p) { return p.kind == SkinnyKind::kTurned; });
  int blocks = 0;
  for (int i = 0; i < list.group.count; ++i) {
    SkinnyProblem& p = list.group.at[i];
    p.tile_rows = p.kind == SkinnyKind::kTurned ? turned_cols
                  : p.kind == SkinnyKind::kWide ? wide_tile_rows(queue, p)
                                                : narrow_rows;
    const int64_t tiles = divide_up(p.m, p.tile_rows);
    if (p.spreads > 0) p.parts = parts_of(queue, p, tiles);
    p.first_block = blocks;
    p.blocks = static_cast<int>(tiles) * p.splits * p.parts;
    blocks += p.blocks;
    if (list.clusters) blocks = (blocks + kSkinnyCluster - 1) / kSkinnyCluster * kSkinnyCluster;
  }
  return static_cast<unsigned>(blocks);
}

template <int Tiles, bool Tall>
void launch_list(const Queue& queue, SkinnyList::Impl& list) {
  using S = SkinnyShape<Tiles>;
  constexpr int kRowTiles = kNarrowTiles<Tiles, Tall>;
  const unsigned blocks = share_out(queue, list, 16 * kRowTiles, S::kTurnedCols);
  int bytes = S::bytes(kRowTiles, list.turned, list.chained);
  for (int i = 0; i < list.group.count; ++i)
    if (const SkinnyProblem& p = list.group.at[i]; p.kind == SkinnyKind::kWide)
      bytes = std::max(bytes, p.tile_rows * wide_ld(p.r) * static_cast<int>(sizeof(float)));
  allow_shared(skinny_kernel<Tiles, Tall>, static_cast<size_t>(bytes));
  launch_clusters(queue, skinny_kernel<Tiles, Tall>, blocks, kSkinnyThreads,
                  static_cast<size_t>(bytes), list.clusters ? kSkinnyCluster : 1, list.group);
}

template <int Tiles>
void launch_list(const Queue& queue, SkinnyList::Impl& list) {
  if constexpr (Tiles <= kTallRanks / 8) {
    if (list.tall) return launch_list<Tiles, true>(queue, list);
  }
  launch_list<Tiles, false>(queue, list);
}

// Of that type, in rows, and small enough for the kernels' indices.
bool is(const Operand& o, DType dtype) {
  return o.dtype == dtype && o.form == WeightForm::kRows && o.rows <= kMostBlocks &&
         o.cols <= kMostBlocks && o.ld <= kMostBlocks;
}

bool is_tall(const SkinnyProblem& p) {
  return (p.kind == SkinnyKind::kTurned ? p.k : p.m) >= kTallRows;
}
Operand columns_of(const Operand& o, int64_t first, int64_t count) {
  Operand part = o;
  part.data = o.as<std::byte>() + first * static_cast<int64_t>(dtype_bytes(o.dtype));
  part.cols = std::min(count, o.cols - first);
  return part;
}
Operand rows_of(const Operand& o, int64_t first, int64_t count) {
  Operand part = o;
  part.data = o.as<std::byte>() + first * o.ld * static_cast<int64_t>(dtype_bytes(o.dtype));
  part.rows = std::min(count, o.rows - first);
  return part;
}

void put_on_list(SkinnyList::Impl& list, SkinnyProblem p, const Operand& a, const Operand& b,
                 const Operand& y) {
  p.a = a.data;
  p.b = b.data;
  p.y = y.data;
  p.a_ld = static_cast<int>(a.ld);
  p.b_ld = static_cast<int>(b.ld);
  p.y_ld = static_cast<int>(y.ld);
  list.tall = is_tall(p);
  if (p.kind != SkinnyKind::kWide) list.most_rank = std::max<int64_t>(list.most_rank, p.r);
  if (p.kind != SkinnyKind::kTurned)
    p.b_bytes = std::min(kMostAskedFor, ((b.rows - 1) * b.ld + b.cols) * int64_t{sizeof(float)});
  list.turned |= p.kind == SkinnyKind::kTurned;
  list.clusters |= p.splits > 1;
  list.blocks += (divide_up(p.m, 16) + 1) * p.splits;
  list.group.at[list.group.count++] = p;
  list.note(a, b, y);
}

// The problem of the list whose blocks may go on with a product of `a`: the narrow one that makes
// it. `column`: where it does.
SkinnyProblem* chained_problem(SkinnyList::Impl& list, const Operand& a, const Operand& y,
                               int& column) {
  if (list.group.spread_count == SkinnyGroup::kMost) return nullptr;
  for (int i = list.group.count; i-- > 0;) {
    SkinnyProblem& p = list.group.at[i];
    // Spreads of a problem lie one after the other.
    if (p.kind != SkinnyKind::kNarrow || p.accumulate || p.splits > 1 || p.k > kChainedDepth ||
        p.chunks + divide_up(y.cols, kSpreadCols) > kChainedChunks || p.m >= kTallRows ||
        p.m < kChainedRows || p.m != a.rows || p.y_ld != a.ld ||
        (p.spreads > 0 && p.first_spread + p.spreads != list.group.spread_count))
      continue;
    const int64_t at = a.as<const Bf16>() - static_cast<const Bf16*>(p.y);
    if (at < 0 || at + a.cols > p.r) continue;
    column = static_cast<int>(at);
    return &p;
  }
  return nullptr;
}

}  // namespace

namespace {

void launch_problems(const Queue& queue) {
  SkinnyList::Impl& list = *queue.skinny->impl;
  if (list.group.count == 0) return;
  if (list.most_rank <= 8)
    launch_list<1>(queue, list);
  else if (list.most_rank <= 16)
    launch_list<2>(queue, list);
  else if (list.most_rank <= 32)
    launch_list<4>(queue, list);
  else
    launch_list<8>(queue, list);
  std::optional<SkinnyList::Impl::Waiting> waiting = std::move(list.waiting);
  list = SkinnyList::Impl{};
  list.waiting = std::move(waiting);
}

// Where spreads cover all that a waiting product makes, they write and it adds: its sums are in
// registers then, and y is read where that costs next to nothing.
bool turn_round(SkinnyList::Impl& list) {
  if (list.waiting->added_to < list.waiting->y.cols) return false;
  for (int i = 0; i < list.group.spread_count; ++i) {
    Spread& s = list.group.spread[i];
    const Operand to{.data = s.y,
                     .rows = list.waiting->y.rows,
                     .cols = s.n,
                     .ld = s.y_ld,
                     .dtype = DType::kBF16};
    if (list.adds_to_waiting(to)) s.accumulate = false;
  }
  return true;
}

}  // namespace

void flush(const Queue& queue) {
  SkinnyList::Impl& list = *queue.skinny->impl;
  if (!list.waiting) return launch_problems(queue);
  const bool last = turn_round(list);
  SkinnyList::Impl::Waiting waiting = *std::exchange(list.waiting, std::nullopt);
  waiting.how.accumulate = last;
  if (last) launch_problems(queue);
  product(queue, waiting.how, waiting.x, waiting.w, waiting.y, nullptr, waiting.bias);
  launch_problems(queue);
}

bool defer_product(const Queue& queue, const Product& p, const Operand& x, const Operand& w,
                   const Operand& y, const Operand& bias) {
  if (queue.blas == nullptr || p.trans != Trans::kNT || p.accumulate ||
      y.elements() < kManyElements || x.rows < kTallRows || !is(x, DType::kBF16) ||
      w.dtype != DType::kBF16 || !is(y, DType::kBF16))
    return false;
  flush(queue);
  Product how = p;
  how.bare = true;
  queue.skinny->impl->waiting = SkinnyList::Impl::Waiting{how, x, w, y, bias};
  return true;
}

namespace {

// The list, with room for one more.
SkinnyList::Impl& list_for(const Queue& queue, bool tall, const Operand& a, const Operand& b,
                           const Operand& y, bool adds_to_waiting = false) {
  SkinnyList::Impl& list = *queue.skinny->impl;
  const bool adds = adds_to_waiting && list.adds_to_waiting(y);
  if (!adds && list.must_follow_waiting(a, b, y)) flush(queue);
  if (list.group.count == SkinnyGroup::kMost || list.group.spread_count == SkinnyGroup::kMost ||
      list.blocks > kMostBlocks || (list.group.count > 0 && list.tall != tall) ||
      list.conflicts(a, b, y)) {
    // What adds to a waiting product is on the list only together with it.
    if (list.waiting && list.waiting->added_to > 0)
      flush(queue);
    else
      launch_problems(queue);
  }
  if (adds && list.waiting) list.waiting->added_to += y.cols;
  return list;
}

}  // namespace

bool narrow_product(const Queue& queue, float alpha, bool accumulate, bool b_by_rank,
                    const Operand& a, const Operand& b, const Operand& y) {
  if (y.cols > kSkinny || !is(a, DType::kBF16) || !is(b, DType::kF32) || !is(y, DType::kBF16) ||
      !aligned16(a) || (b_by_rank && !aligned16(b)) || a.cols % 8 != 0)
    return false;
  const SkinnyProblem p{.kind = SkinnyKind::kNarrow,
                        .m = static_cast<int>(a.rows),
                        .k = static_cast<int>(a.cols),
                        .r = static_cast<int>(y.cols),
                        .splits = queue.arch != Arch::kSm90 || a.cols <= kSplitDepth ? 1
                                  : a.cols <= kLongDepth                             ? kDepthSplits
                                                         : kSkinnyCluster,
                        .alpha = alpha,
                        .accumulate = accumulate,
                        .by_rank = b_by_rank,
                        .b_aligned = aligned16(b)};
  if (is_tall(p) && y.cols > kTallRanks) {
    for (int64_t r = 0; r < y.cols; r += kTallRanks)
      narrow_product(queue, alpha, accumulate, b_by_rank, a,
                     b_by_rank ? rows_of(b, r, kTallRanks) : columns_of(b, r, kTallRanks),
                     columns_of(y, r, kTallRanks));
    return true;
  }
  put_on_list(list_for(queue, is_tall(p), a, b, y), p, a, b, y);
  return true;
}

namespace {

// Of a sum over rows: few columns leave the card empty, many rows are a long way.
int splits_of_sum(const Queue& queue, int64_t rows, int64_t cols) {
  if (queue.arch != Arch::kSm90 || rows < kSplitTokens) return 1;
  if (rows >= kManyTokens) {  // longer ways for more columns: starting and ending one costs
    const int64_t tiles = divide_up(cols, 64);
    return tiles <= 32 ? kSkinnyCluster : tiles <= 128 ? 4 : tiles <= 256 ? 2 : 1;
  }
  return cols <= kFewColumns ? kSkinnyCluster / 2 : 1;
}

}  // namespace

bool narrow_product_turned(const Queue& queue, float alpha, bool accumulate, bool y_by_rank,
                           const Operand& a, const Operand& b, const Operand& y) {
  if (b.cols > kSkinny || !is(a, DType::kBF16) || !is(b, DType::kBF16) || !is(y, DType::kF32) ||
      !aligned16(a))
    return false;
  const SkinnyProblem p{.kind = SkinnyKind::kTurned,
                        .m = static_cast<int>(a.cols),
                        .k = static_cast<int>(a.rows),
                        .r = static_cast<int>(b.cols),
                        .splits = splits_of_sum(queue, a.rows, a.cols),
                        .alpha = alpha,
                        .accumulate = accumulate,
                        .by_rank = y_by_rank,
                        .b_aligned = aligned16(b)};
  if (is_tall(p) && b.cols > kTallRanks) {
    for (int64_t r = 0; r < b.cols; r += kTallRanks)
      narrow_product_turned(queue, alpha, accumulate, y_by_rank, a, columns_of(b, r, kTallRanks),
                            y_by_rank ? rows_of(y, r, kTallRanks) : columns_of(y, r, kTallRanks));
    return true;
  }
  put_on_list(list_for(queue, is_tall(p), a, b, y), p, a, b, y);
  return true;
}

bool wide_product(const Queue& queue, float alpha, bool accumulate, bool b_by_rank,
                  const Operand& a, const Operand& b, const Operand& y) {
  if (a.cols > kSkinny || !is(a, DType::kBF16) || !is(b, DType::kF32) || !is(y, DType::kBF16) ||
      !aligned16(y))
    return false;
  Spread s{.b = b.as<const float>(),
           .y = y.as<Bf16>(),
           .rank_step = static_cast<int>(b_by_rank ? b.ld : 1),
           .column_step = static_cast<int>(b_by_rank ? 1 : b.ld),
           .y_ld = static_cast<int>(y.ld),
           .n = static_cast<int>(y.cols),
           .r = static_cast<int>(a.cols),
           .alpha = alpha,
           .accumulate = accumulate,
           .vectors = aligned16(b)};
  SkinnyList::Impl& list = *queue.skinny->impl;
  SkinnyProblem* maker = chained_problem(list, a, y, s.column);
  if (maker != nullptr && !list.waits(b, y)) {
    list.add(*maker, s);
    list.chained = true;
    list.note(a, b, y);
    return true;
  }
  s.column = 0;
  const SkinnyProblem p{.kind = SkinnyKind::kWide,
                        .m = static_cast<int>(y.rows),
                        .r = static_cast<int>(a.cols),
                        .alpha = alpha,
                        .b_aligned = aligned16(a)};
  put_on_list(list_for(queue, is_tall(p), a, b, y, accumulate), p, a, b, y);
  list.add(list.group.at[list.group.count - 1], s);
  return true;
}

}  // namespace wick::cuda
