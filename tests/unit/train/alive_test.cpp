// SPDX-License-Identifier: Apache-2.0
// What a program's call reads has not been written over since it was made, nor is by the call,
// whichever steps behind it the call makes.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "backend/cpu/cpu.h"
#include "backend/flat_program.h"
#include "infer/decoder_engine.h"
#include "train/step.h"
#include "unit/train/small_model.h"
#include "unit/train/training_kinds.h"

namespace wick {
namespace {

// Follows the calls of one program, and keeps whose bytes its arena holds.
class Follower {
 public:
  Follower(const Plan& plan, const FlatProgram& program, std::vector<size_t> scratch,
           const Buffer& arena)
      : plan_(plan),
        program_(program),
        scratch_(std::move(scratch)),
        arena_(arena.address()),
        owner_(arena.bytes() / kArenaAlignment + 1, kNone) {
    first_ = program.calls()[0].args.step;
    for (const FlatProgram::Call& call : program.calls()) first_ = std::min(first_, call.args.step);
  }

  // How many calls make more than their step.
  int64_t run() {
    int64_t joined = 0;
    std::set<const StepArgs*> made;
    for (const FlatProgram::Call& call : program_.calls()) {
      if (made.count(&call.args)) continue;
      std::vector<const Step*> steps;
      for (const StepArgs* a = &call.args; a != nullptr; a = a->next) {
        made.insert(a);
        steps.push_back(a->step);
      }
      joined += steps.size() > 1;
      follow(call.args, steps);
    }
    for (ValueId id : plan_.results) expect(id, "the results");
    return joined;
  }

 private:
  // What a call writes may be there before it reads the last.
  void follow(const StepArgs& call, const std::vector<const Step*>& steps) {
    for (const Step* s : steps)
      for (const Output& out : s->outputs)
        if (is_temp(out.value) && out.mode == OutMode::kWrite)
          take(program_.address(plan_.root(out.value)), bytes(out.value), plan_.root(out.value));
    if (call.scratch != nullptr)
      take(static_cast<const std::byte*>(call.scratch),
           scratch_[static_cast<size_t>(call.step - first_)], kNone);
    for (const Step* s : steps) {
      const std::string where = cat("step ", s - first_, " (", op_name(s->op), "), made with ",
                                    steps.size() - 1, " others");
      for (ValueId in : s->inputs) expect(in, where);
      for (const Output& out : s->outputs) expect(out.value, where);
    }
  }

  bool is_temp(ValueId id) const {
    return id != kNone && plan_.value(plan_.root(id)).kind == Kind::kTemp;
  }
  size_t bytes(ValueId id) const {
    const Value& root = plan_.value(plan_.root(id));
    return static_cast<size_t>(root.shape.elements()) * dtype_bytes(root.dtype);
  }
  std::span<ValueId> lines(const std::byte* at, size_t bytes) {
    const auto from = static_cast<size_t>(at - arena_);
    EXPECT_LE(from / kArenaAlignment + 1, owner_.size());
    return std::span(owner_).subspan(from / kArenaAlignment,
                                     (bytes + kArenaAlignment - 1) / kArenaAlignment);
  }
  void take(const std::byte* at, size_t bytes, ValueId owner) {
    std::fill(lines(at, bytes).begin(), lines(at, bytes).end(), owner);
  }
  void expect(ValueId id, const std::string& where) {
    if (!is_temp(id)) return;
    const ValueId root = plan_.root(id);
    for (ValueId owner : lines(program_.address(root), bytes(id)))
      if (owner != root) {
        ADD_FAILURE() << where << ": " << plan_.value(id).name << " lies where "
                      << (owner == kNone ? "scratch" : plan_.value(owner).name) << " was written";
        return;
      }
  }

  const Plan& plan_;
  const FlatProgram& program_;
  std::vector<size_t> scratch_;
  const std::byte* arena_;
  std::vector<ValueId> owner_;  // of each line of the arena: a root, or kNone
  const Step* first_ = nullptr;
};

// Compiled over weights and states of zeros.
int64_t follow(Backend& backend, const Plan& plan) {
  const std::vector<WeightForm> forms = backend.weight_forms(plan);
  Bindings bindings(plan.values.size());
  for (size_t i = 0; i < plan.values.size(); ++i) {
    const Value& v = plan.values[i];
    if (v.root != static_cast<ValueId>(i)) continue;
    if (v.kind == Kind::kState) bindings[i] = backend.allocate(v.dtype, v.shape.elements());
    if (v.kind != Kind::kWeight) continue;
    const std::vector<std::byte> zeros(static_cast<size_t>(v.shape.rows()) *
                                       row_bytes(v.dtype, v.shape.cols()));
    bindings[i] = backend.prepare(v, forms[i], zeros.data());
  }
  const std::vector<size_t> scratch = backend.select(plan).scratch_bytes();
  const BufferPtr arena =
      backend.allocate(DType::kU8, place(plan, backend.element_sizes(), scratch).arena_bytes);
  const std::unique_ptr<Program> program = backend.compile(plan, bindings, arena);
  return Follower(plan, dynamic_cast<const FlatProgram&>(*program), scratch, *arena).run();
}

// Halves of the gate are whole panels, or are not; the stream is as wide as a half, or wider.
ModelConfig model(int64_t hidden, int64_t ffn) {
  ModelConfig config = small_model(3);
  config.hidden = hidden;
  config.ffn = ffn;
  return config;
}

class Alive : public testing::TestWithParam<TrainingKind> {};

void follow_all(Backend& backend, const ModelConfig& config, const TrainingKind& kind, DType type) {
  ModelWeights weights = ModelWeights::random(config, 5, DType::kBF16);
  weights.compute_in(DType::kBF16);
  if (dtype_is_quantized(type)) weights.quantize_to(type);
  const Adapter adapter = Adapter::create(kind.lora, adaptable_linears(config));
  const Trainable trained = kind.trained(config, adapter);
  for (const int64_t tokens : {40, 128})
    for (const int64_t recompute : {0, 2, -1}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, recompute " << recompute);
      StepOptions options;
      options.limits = {tokens, tokens / 2};
      options.positions = tokens;
      options.recompute_blocks = recompute;
      const TrainStep step(config, weights, trained, options);
      const int64_t joined =
          follow(backend, step.micro_plan()) + follow(backend, step.score_plan());
      // So that the test would see one.
      if (tokens == 128 && backend.preferred_compute() == DType::kBF16 && !kind.full) {
        EXPECT_GT(joined, 0);
      }
    }
  if (kind.lanes > 1) return;
  for (const int64_t tokens : {1, 8, 40}) {
    SCOPED_TRACE(testing::Message() << "generates " << tokens);
    follow(
        backend,
        DecoderEngine::record(config, weights, backend, trained.source(), 8, 64, tokens)->plan());
  }
}

TEST_P(Alive, IsWhatACallReads) {
  const TrainingKind& kind = GetParam();
  for (const std::string& isa : cpu_isas()) {
    const std::unique_ptr<Backend> backend =
        open_backend({.device = "cpu", .threads = 2, .cpu_isa = isa});
    for (const auto& [hidden, ffn] : {std::pair{96, 48}, {96, 96}, {128, 96}})
      for (const DType type : {DType::kBF16, DType::kQ8G32}) {
        if (type != DType::kBF16 && (kind.full || ffn % 32 != 0 || kind.lora.init == "pissa"))
          continue;
        SCOPED_TRACE(testing::Message()
                     << isa << " " << hidden << " x " << ffn << " " << dtype_name(type));
        follow_all(*backend, model(hidden, ffn), kind, type);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Alive,
    testing::ValuesIn(training_kinds({"plain", "dropout", "dropout_in_one_half", "dora", "ends",
                                      "pissa", "full", "lanes", "lanes_dropout"})),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace wick
