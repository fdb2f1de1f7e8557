// SPDX-License-Identifier: Apache-2.0
// The runner itself: a back end with one wrong kernel must fail, in each way a kernel can be wrong.
#include <gtest/gtest.h>

#include <set>

#include "backend/host_program.h"
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
  ToyBackend(KernelFn fn, int threads)
      : candidates_{{Op::kAdd, Dir::kForward, "add_fwd", fn, nullptr, nullptr}}, pool_(threads) {}
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
  Device toy{"toy",
             [](int threads) { return std::make_unique<ToyBackend>(add_fwd<wrong>, threads); }};
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
