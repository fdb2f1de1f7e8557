// SPDX-License-Identifier: Apache-2.0
// The runner itself: a back end with one wrong kernel must fail, in each way a kernel can be wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>

#include "backend/host_program.h"
#include "base/half.h"
#include "base/threads.h"
#include "ops/modes.h"

namespace wick::ops {
namespace {

// y = a + b, after which `wrong` may do its harm.
template <void (*wrong)(const StepArgs&)>
void add_fwd(const StepArgs& args) {
  const Operand &a = args.in[0], &b = args.in[1], &y = args.out[0];
  for (int64_t r = 0; r < y.rows; ++r) {
    for (int64_t c = 0; c < y.cols; ++c) {
      y.as<float>()[r * y.ld + c] = a.as<float>()[r * a.ld + c] + b.as<float>()[r * b.ld + c];
    }
  }
  wrong(args);
}

class ToyBackend : public Backend {
 public:
  ToyBackend(Candidate kernel, int threads, DType compute = DType::kF32)
      : candidates_{kernel}, compute_(compute), pool_(threads) {}
  DType preferred_compute() const override { return compute_; }
  DeviceInfo info() const override {
    DeviceInfo info;
    info.threads = pool_.threads();
    return info;
  }
  ElementBytes element_sizes() const override { return plain_elements().bytes; }
  BufferPtr allocate(DType dtype, int64_t count) override {
    return host_allocate(plain_elements(), dtype, count);
  }
  void upload(Buffer& to, DType dtype, int64_t offset, int64_t count, const void* data) override {
    host_upload(plain_elements(), to, dtype, offset, count, data);
  }
  void download(const Buffer& from, DType dtype, int64_t offset, int64_t count,
                void* data) const override {
    host_download(plain_elements(), from, dtype, offset, count, data);
  }
  Selection select(const Plan& plan) const override {
    return select_candidates(plan, candidates_, 1, "toy");
  }
  std::unique_ptr<Program> compile(const Plan& plan, const Bindings& bindings,
                                   BufferPtr arena = nullptr) override {
    return std::make_unique<HostProgram>(plan, select(plan), candidates_, bindings,
                                         plain_elements(), pool_, arena);
  }

 private:
  std::vector<Candidate> candidates_;
  DType compute_;
  ThreadPool pool_;
};

Case add_case(const std::string& gap) {
  Case c;
  c.op = Op::kAdd;
  c.keys = {{"T", "3"}, {"D", "5"}, {"gap", gap}};
  build(c, 1);
  return c;
}

template <void (*wrong)(const StepArgs&)>
int failures(const std::string& gap = "0") {
  Device toy{"toy", [](int threads) {
               return std::make_unique<ToyBackend>(
                   Candidate{Op::kAdd, Dir::kForward, "add_fwd", add_fwd<wrong>, nullptr, nullptr},
                   threads);
             }};
  return check_cases({add_case(gap)}, {toy});
}

void nothing(const StepArgs&) {}
void wrong_value(const StepArgs& args) { args.out[0].as<float>()[7] *= 1.0001f; }
void changed_input(const StepArgs& args) { args.in[1].as<float>()[2] += 1; }
void past_the_end(const StepArgs& args) {
  args.out[0].as<float>()[2 * args.out[0].ld + args.out[0].cols] = 0;
}
void before_the_start(const StepArgs& args) { args.out[0].as<float>()[-1] = 0; }
void between_rows(const StepArgs& args) { args.out[0].as<float>()[args.out[0].cols] = 0; }
void by_threads(const StepArgs& args) {
  args.out[0].as<float>()[0] *= 1.0f + 1.2e-7f * static_cast<float>(args.pool->threads() - 1);
}

TEST(Runner, PassesWhatIsRight) {
  EXPECT_EQ(failures<nothing>(), 0);
  EXPECT_EQ(failures<nothing>("4"), 0);
}

TEST(Runner, SeesEveryKindOfHarm) {
  EXPECT_EQ(failures<wrong_value>(), 1);
  EXPECT_EQ(failures<changed_input>(), 1);
  EXPECT_EQ(failures<past_the_end>(), 1);
  EXPECT_EQ(failures<before_the_start>(), 1);
  EXPECT_EQ(failures<between_rows>("4"), 1);
  EXPECT_EQ(failures<by_threads>(), 1);
}

// y = scale * x wᵀ as a unit of bf16 makes it: w's elements are rounded on the way in.
// What is wrong with it beyond that:
enum class Slip { kNone, kDropsATerm, kDropsHalfARow, kScale };
template <Slip slip>
void linear_fwd(const StepArgs& args) {
  const Operand &x = args.in[0], &w = args.in[1], &y = args.out[0];
  const float scale = attr<LinearAttr>(*args.step).scale * (slip == Slip::kScale ? 1.03f : 1.0f);
  for (int64_t t = 0; t < y.rows; ++t)
    for (int64_t n = 0; n < y.cols; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < x.cols; ++k) {
        if (slip == Slip::kDropsATerm && k == x.cols / 2) continue;
        if (slip == Slip::kDropsHalfARow && t == y.rows - 1 && k % 2 == 1) continue;
        sum +=
            to_float(x.as<bf16>()[t * x.ld + k]) * to_float(to_bf16(w.as<float>()[n * w.ld + k]));
      }
      y.as<bf16>()[t * y.ld + n] = to_bf16(scale * sum);
    }
}

constexpr uint64_t kDraws = 30, kHeadDraws = 10;

bool takes_all(const StepArgs&) { return true; }

// How many of kDraws draws of a product of short sums fail.
template <Slip slip>
int failing_draws(const char* terms) {
  Device toy{"toy", [](int threads) {
               return std::make_unique<ToyBackend>(
                   Candidate{Op::kLinear, Dir::kForward, "linear_fwd", linear_fwd<slip>, takes_all,
                             nullptr},
                   threads, DType::kBF16);
             }};
  std::vector<Case> cases;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    Case c;
    c.op = Op::kLinear;
    c.keys = {{"T", "60"}, {"K", terms}, {"N", "16"}, {"compute", "bf16"}, {"dir", "fwd"}};
    build(c, seed);
    cases.push_back(std::move(c));
  }
  return check_cases(cases, {toy});
}

TEST(Runner, RoundedTermsPassInEveryDraw) {
  for (const char* terms : {"1", "5", "9", "16", "24", "100"})
    EXPECT_EQ(failing_draws<Slip::kNone>(terms), 0) << terms << " terms";
}

TEST(Runner, RoundedTermsHideNoMistake) {
  for (const char* terms : {"2", "9", "16", "24", "100"}) {
    EXPECT_EQ(failing_draws<Slip::kDropsATerm>(terms), static_cast<int>(kDraws))
        << terms << " terms";
    EXPECT_EQ(failing_draws<Slip::kDropsHalfARow>(terms), static_cast<int>(kDraws))
        << terms << " terms";
    EXPECT_EQ(failing_draws<Slip::kScale>(terms), static_cast<int>(kDraws)) << terms << " terms";
  }
}

// kl_head as units of bf16 make it, row by row: weights are rounded on the way in, and so is what
// multiplies them. `slip`: the factor is 3 % too large.
struct KlRow {
  std::vector<float> difference;  // p - q
  float kl = 0;

  KlRow(const StepArgs& args, size_t x_at, size_t h_at, int64_t m) {
    const float scale = 1 / attr<KlAttr>(*args.step).temperature;
    std::vector<float> p(static_cast<size_t>(args.in[x_at + 1].rows)), q(p.size());
    auto add = [&](std::vector<float>& to, const Operand& x, const Operand& w) {
      for (int64_t v = 0; v < w.rows && x; ++v)
        for (int64_t d = 0; d < x.cols; ++d)
          to[static_cast<size_t>(v)] +=
              scale * to_float(x.as<bf16>()[m * x.ld + d]) * weight(w, v, d);
    };
    auto softmax = [](std::vector<float>& z) {
      float total = 0;
      for (float& x : z) total += x = std::exp(x);
      for (float& x : z) x /= total;
    };
    add(p, args.in[x_at], args.in[x_at + 1]);
    add(p, args.in[h_at], args.in[h_at + 1]);
    add(q, args.in[x_at + 2], args.in[x_at + 3]);
    softmax(p);
    softmax(q);
    for (size_t v = 0; v < p.size(); ++v) {
      difference.push_back(scale * (p[v] - q[v]));
      kl += q[v] * std::log(q[v] / p[v]);
    }
  }
  static float weight(const Operand& w, int64_t v, int64_t d) {
    return to_float(to_bf16(w.as<float>()[v * w.ld + d]));
  }
  static float rounded(float x) { return to_float(to_bf16(x)); }
};

template <bool slip>
void kl_head_fwd(const StepArgs& args) {
  for (int64_t m = 0; m < args.in[0].rows; ++m) {
    const KlRow row(args, 0, 5, m);
    args.out[0].as<float>()[m] = row.kl;
    for (auto [out, in] : {std::pair{1, 1}, {3, 6}}) {
      const Operand &to = args.out[static_cast<size_t>(out)], &w = args.in[static_cast<size_t>(in)];
      for (int64_t d = 0; d < to.cols && to; ++d) {
        float sum = 0;
        for (int64_t v = 0; v < w.rows; ++v)
          sum += KlRow::rounded(row.difference[static_cast<size_t>(v)]) * KlRow::weight(w, v, d);
        to.as<bf16>()[m * to.ld + d] = to_bf16(slip ? 1.03f * sum : sum);
      }
    }
  }
}

template <bool slip>
void kl_head_bwd(const StepArgs& args) {
  for (auto [out, in] : {std::pair{1, 2}, {3, 8}}) {
    const Operand &to = args.out[static_cast<size_t>(out)], &x = args.in[static_cast<size_t>(in)];
    for (int64_t v = 0; v < to.rows && to; ++v)
      std::fill_n(to.as<float>() + v * to.ld, to.cols, 0.0f);
    for (int64_t m = 0; m < x.rows && to; ++m) {
      const KlRow row(args, 2, 8, m);
      const float g = args.in[0].as<float>()[m] * (slip ? 1.03f : 1.0f);
      for (int64_t v = 0; v < to.rows; ++v)
        for (int64_t d = 0; d < to.cols; ++d)
          to.as<float>()[v * to.ld + d] +=
              KlRow::rounded(g * row.difference[static_cast<size_t>(v)]) *
              to_float(x.as<bf16>()[m * x.ld + d]);
    }
  }
}

template <bool slip>
int failing_heads(Dir dir, std::map<std::string, std::string> keys) {
  const auto kernel = dir == Dir::kForward ? kl_head_fwd<slip> : kl_head_bwd<slip>;
  Device toy{"toy", [&](int threads) {
               return std::make_unique<ToyBackend>(
                   Candidate{Op::kKlHead, dir, "kl_head", kernel, takes_all, nullptr}, threads,
                   DType::kBF16);
             }};
  const bool forward = dir == Dir::kForward;
  keys.insert({{"compute", "bf16"}, {"dir", forward ? "fwd" : "bwd"}, {"dw_wanted", "1"}});
  std::vector<Case> cases;
  for (uint64_t seed = 0; seed < kHeadDraws; ++seed) {
    Case c;
    c.op = Op::kKlHead;
    c.keys = keys;
    build(c, seed);
    for (int32_t& target : c.arg("targets").ints) target = 0;  // no row is left out
    for (std::string& name : forward ? c.fwd_out : c.bwd_out)
      if (name == "lse" || name == "dx" || name == "dh") name.clear();
    cases.push_back(std::move(c));
  }
  return check_cases(cases, {toy});
}

TEST(Runner, DifferencesOfRoundedLogitsPassInEveryDraw) {
  for (Dir dir : {Dir::kForward, Dir::kBackward}) {
    for (const std::map<std::string, std::string>& keys :
         std::initializer_list<std::map<std::string, std::string>>{
             {{"M", "9"}, {"D", "17"}, {"E", "9"}, {"V", "33"}},
             {{"M", "20"}, {"D", "24"}, {"E", "16"}, {"V", "130"}},
             {{"M", "9"}, {"D", "33"}, {"E", "17"}, {"V", "65"}, {"R", "8"}},
             {{"M", "20"},
              {"D", "8"},
              {"E", "8"},
              {"V", "20"},
              {"R", "2"},
              {"temperature", "2"}}}) {
      EXPECT_EQ(failing_heads<false>(dir, keys), 0);
      EXPECT_EQ(failing_heads<true>(dir, keys), static_cast<int>(kHeadDraws));
    }
  }
}

// An element is at most √n times the norm of its n terms, and none where they are all zero.
TEST(Runner, TermsAreThoseOfTheirElements) {
  for (Op op : {Op::kLinear, Op::kAttention, Op::kHead, Op::kKlHead}) {
    int64_t compared = 0;
    for (const Case& c : load_cases(WICK_SOURCE_DIR "/tests/ops", op, Part::kSmall)) {
      if (c.keys.contains("mode") || c.flag("bias")) continue;
      if (c.op == Op::kHead && c.arg("w").shape.elements() > 40'000) continue;  // seconds each
      for (Dir dir : {Dir::kForward, Dir::kBackward}) {
        if (!c.runs(dir)) continue;
        const auto values = run_reference(c, dir), norms = term_norms(c, dir);
        for (size_t i = 0; i < norms.size(); ++i) {
          if (norms[i].empty()) continue;
          const Arg& arg = c.arg((dir == Dir::kForward ? c.fwd_out : c.bwd_out)[i]);
          ASSERT_EQ(norms[i].size(), values[i].size()) << c.text;
          const double most = std::sqrt(static_cast<double>(arg.reduction)) * (1 + 1e-9);
          for (size_t k = 0; k < values[i].size(); ++k, ++compared)
            if (!(std::abs(values[i][k]) <= most * norms[i][k] + 1e-12))
              FAIL() << op_name(op) << " " << c.text << ": " << arg.name << "[" << k << "]";
        }
      }
    }
    EXPECT_GT(compared, 20) << op_name(op);
  }
}

TEST(Runner, ContentsGoByTheCasesOwnWords) {
  Case a, b;
  a.op = b.op = Op::kLinear;
  a.keys = {{"T", "5"}, {"K", "7"}, {"N", "3"}};
  b.keys = {{"N", "3"}, {"K", "7"}, {"T", "5"}};
  EXPECT_EQ(case_seed(a), case_seed(b));
  b.keys["T"] = "6";
  EXPECT_NE(case_seed(a), case_seed(b));
  b = a;
  b.op = Op::kHead;
  EXPECT_NE(case_seed(a), case_seed(b));
}

TEST(Runner, EveryCaseIsInOnePart) {
  for (Op op : {Op::kRope, Op::kGatedAct, Op::kColumnNorm}) {
    const std::string folder = WICK_SOURCE_DIR "/tests/ops";
    std::multiset<std::string> all, parts;
    for (const Case& c : load_cases(folder, op)) all.insert(c.text);
    const std::vector<Case> small = load_cases(folder, op, Part::kSmall);
    for (const Case& c : small) parts.insert(c.text);
    for (const Case& c : load_cases(folder, op, Part::kLarge)) {
      parts.insert(c.text);
      EXPECT_FALSE(c.flag("grad")) << c.text;
    }
    EXPECT_FALSE(small.empty()) << op_name(op);
    EXPECT_EQ(parts, all) << op_name(op);
  }
}

TEST(Runner, RefusesWhatItDoesNotUnderstand) {
  Case c;
  c.op = Op::kAdd;
  c.keys = {{"T", "3"}, {"D", "5"}, {"widht", "4"}};
  EXPECT_THROW(build(c, 1), Error);
  c.keys = {{"T", "3"}};
  EXPECT_THROW(build(c, 1), Error);
}

}  // namespace
}  // namespace wick::ops
