// SPDX-License-Identifier: Apache-2.0
// The kernels in bf16 tiles against plain loops: odd sizes, guard bytes around every operand, rungs
// that have them and run here.
#include "backend/cpu/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "backend/cpu/amx.h"
#include "backend/cpu/rungs.h"
#include "backend/cpu/short_tiles.h"
#include "backend/host_program.h"
#include "base/rng.h"
#include "base/threads.h"

namespace wick::test {
namespace {

constexpr unsigned char kGuard = 0xA5;
constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16, kI32 = DType::kI32;

std::vector<cpu::Rung> tile_rungs() {
  std::vector<cpu::Rung> rungs;
  for (cpu::Rung rung : {cpu::Rung::kAmx, cpu::Rung::kAvx512Bf16})
    if (cpu::rung_works(rung)) rungs.push_back(rung);
  return rungs;
}

// A row-major matrix inside a wider one.
class Grid {
 public:
  Grid() = default;
  Grid(int64_t rows, int64_t cols, DType dtype)
      : buffer_(std::make_shared<HostBuffer>(static_cast<size_t>((rows + 2) * (cols + 6) + 3) *
                                             dtype_bytes(dtype))) {
    const int64_t ld = dtype == kI32 || rows == 1 ? cols : cols + 6;
    std::memset(buffer_->data(), kGuard, buffer_->bytes());
    operand = {.data = buffer_->data() + static_cast<size_t>(ld + 3) * dtype_bytes(dtype),
               .rows = rows,
               .cols = cols,
               .ld = ld,
               .dtype = dtype};
  }
  static Grid normal(Rng& rng, int64_t rows, int64_t cols, DType dtype, float size = 1.0f) {
    Grid g(rows, cols, dtype);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) g.set(r, c, size * rng.normal());
    return g;
  }
  Grid copy() const {
    Grid g = *this;
    g.buffer_ = std::make_shared<HostBuffer>(buffer_->bytes());
    std::memcpy(g.buffer_->data(), buffer_->data(), buffer_->bytes());
    g.operand.data = g.buffer_->data() + (operand.as<std::byte>() - buffer_->data());
    return g;
  }
  // The same numbers in tiles.
  Grid tiles() const {
    Grid g = *this;
    g.rows_ = std::make_shared<Grid>(*this);
    g.buffer_ = std::make_shared<HostBuffer>(cpu::tiles_bytes(operand.rows, operand.cols));
    ThreadPool pool(2);
    cpu::pack_tiles(pool, operand.dtype, operand.data, operand.rows, operand.cols,
                    g.buffer_->data(), operand.ld);
    g.operand.data = g.buffer_->data();
    g.operand.dtype = kBF16;
    g.operand.form = WeightForm::kTiles;
    return g;
  }

  // Those tiles in fewer bytes; none where they cannot be.
  Grid shorter() const {
    Grid g = *this;
    const Operand& from = rows_->operand;
    if (!cpu::may_be_short(from.rows, from.cols)) return Grid();
    std::vector<std::byte> plain;
    for (int64_t r = 0; r < from.rows; ++r)
      plain.insert(plain.end(), rows_->at(r, 0), rows_->at(r, from.cols));
    g.buffer_ = std::make_shared<HostBuffer>(cpu::short_tiles_bytes(from.rows, from.cols));
    ThreadPool pool(2);
    if (!cpu::pack_short_tiles(pool, from.dtype, plain.data(), from.rows, from.cols,
                               g.buffer_->data()))
      return Grid();
    g.operand.data = g.buffer_->data();
    g.operand.form = WeightForm::kShortTiles;
    return g;
  }

  std::byte* at(int64_t r, int64_t c) const {
    return operand.as<std::byte>() +
           static_cast<size_t>(r * operand.ld + c) * dtype_bytes(operand.dtype);
  }
  void set(int64_t r, int64_t c, float x) {
    const bf16 b = to_bf16(x);
    const f16 h = to_f16(x);
    const int32_t i = static_cast<int32_t>(x);
    if (operand.dtype == kF32) std::memcpy(at(r, c), &x, 4);
    if (operand.dtype == kBF16) std::memcpy(at(r, c), &b, 2);
    if (operand.dtype == kF16) std::memcpy(at(r, c), &h, 2);
    if (operand.dtype == kI32) std::memcpy(at(r, c), &i, 4);
  }
  double get(int64_t r, int64_t c) const {
    if (rows_) return to_float(to_bf16(static_cast<float>(rows_->get(r, c))));
    switch (operand.dtype) {
      case kBF16:
        return to_float(*reinterpret_cast<const bf16*>(at(r, c)));
      case kF16:
        return to_float(*reinterpret_cast<const f16*>(at(r, c)));
      case kI32:
        return *reinterpret_cast<const int32_t*>(at(r, c));
      default:
        return *reinterpret_cast<const float*>(at(r, c));
    }
  }
  // As a product sees it, row-major.
  std::vector<double> rounded() const {
    std::vector<double> values;
    for (int64_t r = 0; r < operand.rows; ++r)
      for (int64_t c = 0; c < operand.cols; ++c)
        values.push_back(to_float(to_bf16(static_cast<float>(get(r, c)))));
    return values;
  }

  bool guarded() const {
    std::vector<std::byte> bytes(buffer_->data(), buffer_->data() + buffer_->bytes());
    for (int64_t r = 0; r < operand.rows; ++r)
      std::memset(bytes.data() + (at(r, 0) - buffer_->data()), kGuard,
                  static_cast<size_t>(operand.cols) * dtype_bytes(operand.dtype));
    return std::all_of(bytes.begin(), bytes.end(),
                       [](std::byte b) { return b == std::byte{kGuard}; });
  }
  bool same(const Grid& other) const {
    return std::memcmp(buffer_->data(), other.buffer_->data(), buffer_->bytes()) == 0;
  }

  Operand operand;

 private:
  std::shared_ptr<HostBuffer> buffer_;
  std::shared_ptr<Grid> rows_;  // what tiles were made from
};

struct Call {
  Op op;
  Dir dir = Dir::kForward;
  Attr attr = {};
  std::vector<Grid> in, out;
  OutMode mode = OutMode::kWrite;
};

// With `shorter` a program's choice and scratch are those of tiles, and its tiles are shorter.
std::vector<Grid> run(const Call& call, cpu::Rung rung, int threads, bool shorter = false) {
  std::vector<Grid> out;
  for (const Grid& g : call.out) out.push_back(g.operand ? g.copy() : g);
  Step step{call.op, call.dir, {}, {}, call.attr};
  std::vector<Operand> ins, outs;
  for (const Grid& g : call.in) ins.push_back(g.operand);
  for (const Grid& g : out) {
    outs.push_back(g.operand);
    step.outputs.push_back({kNone, call.mode});
  }
  ThreadPool pool(threads);
  StepArgs args{.step = &step, .in = ins, .out = outs, .scratch = nullptr, .pool = &pool};
  for (const Candidate& c : cpu::tile_candidates(rung)) {
    if (c.op != call.op || c.dir != call.dir || !c.accepts(args)) continue;
    const size_t bytes = c.scratch ? c.scratch(args, threads) : 0;
    HostBuffer scratch(bytes + 64);
    std::memset(scratch.data(), kGuard, scratch.bytes());
    args.scratch = scratch.data();
    std::vector<Grid> kept;  // while the kernel reads them
    for (size_t i = 0; shorter && i < ins.size(); ++i)
      if (ins[i].form == WeightForm::kTiles) {
        kept.push_back(call.in[i].shorter());
        ins[i] = kept.back().operand;
      }
    c.fn(args);
    for (size_t i = bytes; i < scratch.bytes(); ++i)
      EXPECT_EQ(scratch.data()[i], std::byte{kGuard}) << c.name << " leaves its scratch";
    for (size_t i = 0; i < out.size(); ++i)
      if (out[i].operand) {
        EXPECT_TRUE(out[i].guarded()) << c.name << " writes outside output " << i;
      }
    return out;
  }
  ADD_FAILURE() << "no kernel accepts " << op_name(call.op);
  return out;
}

using Want = std::function<double(int64_t r, int64_t c)>;

// Output i against `want`, whose sums have terms of size 1 or so; the same bits for any threads.
void check(const std::string& what, const Call& call, const std::vector<Want>& want,
           double tolerance = 0) {
  std::vector<std::vector<double>> wanted(call.out.size());
  for (size_t i = 0; i < call.out.size(); ++i)
    for (int64_t r = 0; r < call.out[i].operand.rows; ++r)
      for (int64_t c = 0; c < call.out[i].operand.cols; ++c) wanted[i].push_back(want[i](r, c));
  for (cpu::Rung rung : tile_rungs()) {
    const std::string where = cat(what, " on ", cpu::rung_name(rung));
    const std::vector<Grid> got = run(call, rung, 1);
    for (size_t i = 0; i < got.size(); ++i) {
      const Operand& o = got[i].operand;
      if (!o) continue;
      const double relative = tolerance + (o.dtype == kBF16 ? 0.006 : 3e-5);
      for (int64_t r = 0; r < o.rows; ++r)
        for (int64_t c = 0; c < o.cols; ++c) {
          const double w = wanted[i][r * o.cols + c], g = got[i].get(r, c);
          ASSERT_LE(std::abs(g - w), relative * (1 + std::abs(w)))
              << where << ", output " << i << " [" << r << ", " << c << "]: " << g << ", not " << w;
        }
    }
    for (int threads : {2, 3}) {
      const std::vector<Grid> again = run(call, rung, threads);
      for (size_t i = 0; i < got.size(); ++i)
        if (got[i].operand) {
          ASSERT_TRUE(again[i].same(got[i]))
              << where << ", " << threads << " threads, output " << i;
        }
    }
    const bool can_be_short =
        rung == cpu::Rung::kAvx512Bf16 && std::ranges::any_of(call.in, [](const Grid& g) {
          return g.operand.form == WeightForm::kTiles && g.shorter().operand;
        });
    if (!can_be_short) continue;
    for (int threads : {1, 3}) {
      const std::vector<Grid> again = run(call, rung, threads, true);
      for (size_t i = 0; i < got.size(); ++i)
        if (got[i].operand) {
          ASSERT_TRUE(again[i].same(got[i]))
              << where << ", shorter tiles, " << threads << " threads, output " << i;
        }
    }
  }
}

TEST(Tiles, AmxSaysWhyNot) { EXPECT_EQ(cpu::amx_works(), cpu::amx_problem().empty()); }

TEST(Tiles, Pack) {
  Rng rng(1);
  for (auto [n, k] : {std::array<int64_t, 2>{1, 1}, {16, 32}, {33, 70}, {70, 31}})
    for (DType dtype : {kF32, kBF16, kF16}) {
      const Grid w = Grid::normal(rng, n, k, dtype), t = w.tiles();
      const bf16* tiles = t.operand.as<const bf16>();
      const std::vector<double> rounded = w.rounded();
      for (int64_t r = 0; r < cpu::tile_blocks(n) * 32; ++r)
        for (int64_t c = 0; c < cpu::tile_blocks(k) * 32; ++c)
          ASSERT_EQ(to_float(tiles[cpu::tile_index(r, c, k)]),
                    r < n && c < k ? rounded[r * k + c] : 0.0);
    }
}

constexpr std::array<std::array<int64_t, 3>, 10> kShapes = {{{1, 1, 1},
                                                             {1, 37, 65},
                                                             {5, 100, 33},
                                                             {16, 8, 896},
                                                             {17, 33, 5},
                                                             {49, 70, 129},
                                                             {70, 8, 300},
                                                             {100, 200, 8},
                                                             {520, 40, 40},
                                                             {300, 70, 1100}}};

TEST(Tiles, LinearForward) {
  Rng rng(2);
  for (auto [m, n, k] : kShapes)
    for (DType y_type : {kF32, kBF16})
      for (int kind : {0, 1, 2})
        for (OutMode mode : {OutMode::kWrite, OutMode::kAccumulate}) {
          const Grid x = Grid::normal(rng, m, k, kBF16);
          Grid w = Grid::normal(rng, n, k, kind == 1 ? kF32 : kBF16, 0.3f);
          if (kind == 0) w = w.tiles();
          const Grid bias =
              mode == OutMode::kWrite ? Grid::normal(rng, 1, n, kind == 1 ? kF32 : kBF16) : Grid();
          const Grid y = Grid::normal(rng, m, n, y_type);
          const std::vector<double> xs = x.rounded(), ws = w.rounded();
          check(cat("linear_fwd ", m, " ", n, " ", k, " kind ", kind),
                {Op::kLinear, Dir::kForward, LinearAttr{0.75f}, {x, w, bias}, {y}, mode},
                {[&](int64_t r, int64_t c) {
                  double sum = 0;
                  for (int64_t i = 0; i < k; ++i) sum += xs[r * k + i] * ws[c * k + i];
                  sum = 0.75 * sum + (bias.operand ? bias.get(0, c) : 0);
                  return mode == OutMode::kAccumulate ? y.get(r, c) + sum : sum;
                }});
        }
}

TEST(Tiles, LinearBackward) {
  Rng rng(3);
  for (auto [m, n, k] : kShapes)
    for (DType dx_type : {kF32, kBF16})
      for (bool tiles : {false, true})
        for (OutMode mode : {OutMode::kWrite, OutMode::kAccumulate}) {
          const Grid dy = Grid::normal(rng, m, n, kBF16), x = Grid::normal(rng, m, k, kBF16);
          Grid w = Grid::normal(rng, n, k, kF32, 0.3f);
          if (tiles) w = w.tiles();
          const Grid dx = Grid::normal(rng, m, k, dx_type), dw = Grid::normal(rng, n, k, kF32),
                     db = Grid::normal(rng, 1, n, kF32);
          const double keep = mode == OutMode::kAccumulate ? 1 : 0;
          const std::vector<double> dys = dy.rounded(), xs = x.rounded(), ws = w.rounded();
          check(cat("linear_bwd ", m, " ", n, " ", k),
                {Op::kLinear, Dir::kBackward, LinearAttr{2.0f}, {dy, x, w}, {dx, dw, db}, mode},
                {[&](int64_t r, int64_t c) {
                   double sum = 0;
                   for (int64_t i = 0; i < n; ++i) sum += dys[r * n + i] * ws[i * k + c];
                   return keep * dx.get(r, c) + 2 * sum;
                 },
                 [&](int64_t r, int64_t c) {
                   double sum = 0;
                   for (int64_t i = 0; i < m; ++i) sum += dys[i * n + r] * xs[i * k + c];
                   return keep * dw.get(r, c) + 2 * sum;
                 },
                 [&](int64_t, int64_t c) {
                   double sum = 0;
                   for (int64_t i = 0; i < m; ++i) sum += dys[i * n + c];
                   return keep * db.get(0, c) + sum;
                 }});
        }
}

// What a row becomes does not depend on how many there are: not on the kernel for few rows, nor on
// where a product is cut.
TEST(Tiles, RowsAreIndependent) {
  Rng rng(4);
  const int64_t m = 530, n = 50, k = 1100;
  const Grid x = Grid::normal(rng, m, k, kBF16), w = Grid::normal(rng, n, k, kBF16).tiles();
  for (cpu::Rung rung : tile_rungs()) {
    const Call all{Op::kLinear, Dir::kForward, LinearAttr{}, {x, w, Grid()}, {Grid(m, n, kF32)}};
    const Grid y = run(all, rung, 2)[0];
    for (auto [row, rows] : {std::array<int64_t, 2>{529, 1}, {3, 16}, {40, 17}, {100, 300}}) {
      Grid part = x;
      part.operand.data = x.at(row, 0);
      part.operand.rows = rows;
      const Call some{
          Op::kLinear, Dir::kForward, LinearAttr{}, {part, w, Grid()}, {Grid(rows, n, kF32)}};
      const Grid z = run(some, rung, 1)[0];
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < n; ++c) ASSERT_EQ(z.get(r, c), y.get(row + r, c)) << rows;
    }
  }
}

// Nor on how large w and y are, from which on they are read by one thread and stored past caches.
TEST(Tiles, LargeOperandsGiveTheSameRows) {
  Rng rng(5);
  const int64_t m = 470, n = 7168, k = 896, row = 330, rows = 37;
  const Grid w = Grid::normal(rng, n, k, kBF16).tiles();
  for (cpu::Rung rung : tile_rungs())
    for (Dir dir : {Dir::kForward, Dir::kBackward}) {
      const bool forward = dir == Dir::kForward;
      const int64_t in = forward ? k : n, out = forward ? n : k;
      const Grid x = Grid::normal(rng, m, in, kBF16);
      Grid part = x;
      part.operand.data = x.at(row, 0);
      part.operand.rows = rows;
      auto product = [&](const Grid& of, int64_t count, int threads) {
        const Grid y(count, out, kBF16);
        return run(forward ? Call{Op::kLinear, dir, LinearAttr{}, {of, w, Grid()}, {y}}
                           : Call{Op::kLinear, dir, LinearAttr{}, {of, Grid(), w}, {y}},
                   rung, threads)[0];
      };
      const Grid y = product(x, m, 2), z = product(part, rows, 1), again = product(x, m, 3);
      for (int64_t c = 0; c < out; ++c) {
        for (int64_t r = 0; r < rows; ++r) ASSERT_EQ(z.get(r, c), y.get(row + r, c)) << c;
        for (int64_t r = 0; r < m; ++r) ASSERT_EQ(again.get(r, c), y.get(r, c)) << c;
      }
    }
}

TEST(Tiles, Embed) {
  Rng rng(5);
  const Grid table = Grid::normal(rng, 70, 45, kBF16).tiles();
  Grid ids(1, 5, kI32);
  for (int64_t i = 0; i < 5; ++i) ids.set(0, i, static_cast<float>(i * 17));
  for (DType dtype : {kF32, kBF16})
    check("embed", {Op::kEmbed, Dir::kForward, {}, {table, ids}, {Grid(5, 45, dtype)}},
          {[&](int64_t r, int64_t c) { return table.get(r * 17, c); }});
}

struct Head {
  Grid x, w, targets;
  int64_t m, v, d;
  std::vector<std::vector<double>> p;  // by row
  std::vector<double> lse, logp, xs, ws;
  Head(Rng& rng, int64_t m, int64_t v, int64_t d, bool tiles, float size)
      : x(Grid::normal(rng, m, d, kBF16, size)),
        w(Grid::normal(rng, v, d, kBF16, 0.5f)),
        targets(1, m, kI32),
        m(m),
        v(v),
        d(d) {
    for (int64_t i = 0; i < m; ++i)
      targets.set(0, i, i % 5 == 3 ? -1.0f : static_cast<float>(rng.below(v)));
    xs = x.rounded();
    ws = w.rounded();
    for (int64_t r = 0; r < m; ++r) {
      std::vector<double> l(static_cast<size_t>(v));
      double most = -1e30, total = 0;
      for (int64_t j = 0; j < v; ++j) {
        for (int64_t i = 0; i < d; ++i) l[j] += xs[r * d + i] * ws[j * d + i];
        most = std::max(most, l[j]);
      }
      for (double e : l) total += std::exp(e - most);
      lse.push_back(target(r) < 0 ? 0 : most + std::log(total));
      logp.push_back(target(r) < 0 ? 0 : l[target(r)] - lse.back());
      for (double& e : l) e = std::exp(e - lse.back());
      p.push_back(l);
    }
    if (tiles) w = w.tiles();
  }
  int64_t target(int64_t r) const { return static_cast<int64_t>(targets.get(0, r)); }
  double slope(int64_t r, int64_t c) const {
    if (target(r) < 0) return 0;
    double sum = ws[target(r) * d + c];
    for (int64_t j = 0; j < v; ++j) sum -= p[r][j] * ws[j * d + c];
    return sum;
  }
  static Want want(const std::vector<double>& rows) {
    return [&](int64_t, int64_t c) { return rows[c]; };
  }
};

TEST(Tiles, Head) {
  Rng rng(6);
  for (auto [m, v, d] :
       {std::array<int64_t, 3>{1, 40, 8}, {37, 2100, 40}, {20, 100, 130}, {600, 33, 33}})
    for (bool tiles : {true, false}) {
      // The larger one makes references move.
      const Head head(rng, m, v, d, tiles, m == 37 ? 6.0f : 1.0f);
      auto slope = [&](int64_t r, int64_t c) { return head.slope(r, c); };
      for (bool keep : {false, true})
        check(cat("head_fwd ", m, " ", v, " ", d),
              {Op::kHead,
               Dir::kForward,
               HeadAttr{},
               {head.x, head.w, head.targets},
               {Grid(1, m, kF32), Grid(1, m, kF32), keep ? Grid(m, d, kBF16) : Grid()}},
              {head.want(head.logp), head.want(head.lse), slope});

      Grid dlogp = Grid::normal(rng, 1, m, kF32), saved(1, m, kF32), slopes(m, d, kBF16);
      for (int64_t i = 0; i < m; ++i) {
        saved.set(0, i, static_cast<float>(head.lse[i]));
        for (int64_t c = 0; c < d; ++c) slopes.set(i, c, static_cast<float>(head.slope(i, c)));
      }
      auto dx = [&](int64_t r, int64_t c) { return dlogp.get(0, r) * head.slope(r, c); };
      for (OutMode mode : {OutMode::kWrite, OutMode::kAccumulate}) {
        const Grid dw = Grid::normal(rng, v, d, kF32);
        auto want_dw = [&](int64_t r, int64_t c) {
          double sum = mode == OutMode::kAccumulate ? dw.get(r, c) : 0;
          for (int64_t i = 0; i < m; ++i)
            if (head.target(i) >= 0)
              sum += dlogp.get(0, i) * ((head.target(i) == r) - head.p[i][r]) * head.xs[i * d + c];
          return sum;
        };
        for (bool given : {false, true}) {
          std::vector<Grid> in = {dlogp, head.x, head.w, head.targets, saved};
          if (given) in.push_back(slopes);
          // Outputs of two modes: dx writes, so it is asked for only with kWrite.
          check(cat("head_bwd ", m, " ", v, " ", d),
                {Op::kHead,
                 Dir::kBackward,
                 HeadAttr{},
                 in,
                 {mode == OutMode::kWrite ? Grid(m, d, kBF16) : Grid(), dw},
                 mode},
                {dx, want_dw}, 0.04);
          check("head_bwd dx",
                {Op::kHead, Dir::kBackward, HeadAttr{}, in, {Grid(m, d, kBF16), Grid()}},
                {dx, want_dw}, 0.04);
        }
      }
    }
}

// In one chunk of the vocabulary no probability is kept beyond those that count.
TEST(Tiles, HeadWithoutSmallProbabilities) {
  Rng rng(7);
  for (auto [m, v, d] : {std::array<int64_t, 3>{37, 200, 40}, {20, 100, 130}}) {
    constexpr float kBelow = 0.02f;
    Head head(rng, m, v, d, true, 1.0f);
    Head kept = head;
    for (std::vector<double>& row : kept.p)
      for (double& p : row) p = p < kBelow ? 0 : p;
    auto slope = [&](int64_t r, int64_t c) { return kept.slope(r, c); };
    check("head_fwd without small probabilities",
          {Op::kHead,
           Dir::kForward,
           HeadAttr{kBelow},
           {head.x, head.w, head.targets},
           {Grid(1, m, kF32), Grid(1, m, kF32), Grid(m, d, kBF16)}},
          {head.want(head.logp), head.want(head.lse), slope}, 0.05);
  }
}

}  // namespace
}  // namespace wick::test
