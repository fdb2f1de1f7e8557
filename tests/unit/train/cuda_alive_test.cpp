// SPDX-License-Identifier: Apache-2.0
// What the launches of a CUDA program read has not been written over since it was made, nor is by
// them, whichever steps they make together; on cards that are only described.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/flat_program.h"
#include "infer/decoder_engine.h"
#include "plan/widened.h"
#include "train/distill.h"
#include "train/step.h"
#include "unit/backend/cuda/card.h"
#include "unit/train/cuda_launches.h"
#include "unit/train/small_model.h"
#include "unit/train/training_kinds.h"

namespace wick {
namespace {

// Whose bytes an arena holds.
class Owners {
 public:
  static constexpr int64_t kNobody = -1;

  void take(const std::byte* from, size_t bytes, int64_t owner) {
    const auto first = reinterpret_cast<uintptr_t>(from), behind = first + bytes;
    cut(first);
    cut(behind);
    parts_.erase(parts_.lower_bound(first), parts_.lower_bound(behind));
    parts_[first] = {behind, owner};
  }
  // Who has some of these bytes in place of `owner`; that itself if nobody has.
  int64_t other_than(int64_t owner, const std::byte* from, size_t bytes) const {
    uintptr_t at = reinterpret_cast<uintptr_t>(from);
    const uintptr_t behind = at + bytes;
    auto part = parts_.upper_bound(at);
    if (part != parts_.begin()) --part;
    for (; at < behind; at = (part++)->second.behind)
      if (part == parts_.end() || part->first > at || part->second.behind <= at)
        return kNobody;
      else if (part->second.owner != owner)
        return part->second.owner;
    return owner;
  }

 private:
  struct Part {
    uintptr_t behind;
    int64_t owner;
  };
  void cut(uintptr_t at) {
    auto part = parts_.upper_bound(at);
    if (part == parts_.begin() || (--part)->first == at || part->second.behind <= at) return;
    parts_[at] = part->second;
    part->second.behind = at;
  }
  std::map<uintptr_t, Part> parts_;  // by their first bytes
};

// Follows the launches of one program.
class Follower {
 public:
  Follower(const Plan& plan, const FlatProgram& program, std::vector<size_t> scratch,
           std::span<const StepGroup> groups)
      : plan_(plan),
        program_(program),
        scratch_(std::move(scratch)),
        groups_(groups),
        written_(plan.values.size(), false) {}

  void run() {
    for (const StepGroup& group : groups_) {
      where_ =
          cat("steps ", group.first, " to ", group.second - 1, " (", name_of(plan_, group), ")");
      for (const Launch& launch : launches_of(plan_, group)) follow(launch);
    }
    where_ = "the results";
    for (ValueId id : plan_.results) expect(id);
  }

 private:
  // What a launch writes may be there before it reads the last.
  void follow(const Launch& launch) {
    for (const std::vector<size_t>& products : {launch.scratch, launch.matrices})
      for (size_t product : products) make_ahead(product);
    for (ValueId out : launch.writes)
      if (is_temp(out) && !written_[index(out)]) {
        written_[index(out)] = true;
        owners_.take(program_.address(plan_.root(out)), bytes(out), plan_.root(out));
      }
    auto own = [&](size_t step, size_t count) {
      const size_t made = ahead_.count(step) ? matrix_bytes(plan_, step) : 0;
      if (made > 0) expect_scratch(step, made);
      if (count > made) take_scratch(step, count);
    };
    for (size_t i : launch.scratch) own(i, scratch_[i]);
    for (size_t i : launch.matrices) own(i, matrix_bytes(plan_, i));
    for (ValueId in : launch.reads) expect(in);
    for (ValueId out : launch.writes) expect(out);
    for (size_t i : launch.scratch) expect_scratch(i, scratch_[i]);
    for (size_t i : launch.matrices) expect_scratch(i, matrix_bytes(plan_, i));
  }

  // The matrix that may be made as soon as this product has begun (plan/widened.h).
  void make_ahead(size_t product) {
    if (quantized_matrix(plan_, plan_.steps[product]) == kNone) return;
    for (size_t i = product + 1; i < plan_.steps.size(); ++i)
      if (quantized_matrix(plan_, plan_.steps[i]) != kNone) {
        if (widened_from(plan_, i) != static_cast<int32_t>(product) || matrix_bytes(plan_, i) == 0)
          return;
        take_scratch(i, matrix_bytes(plan_, i));
        ahead_.insert(i);
        return;
      }
  }

  bool is_temp(ValueId id) const {
    return id != kNone && plan_.value(plan_.root(id)).kind == Kind::kTemp;
  }
  size_t index(ValueId id) const { return static_cast<size_t>(plan_.root(id)); }
  size_t bytes(ValueId id) const {
    const Value& root = plan_.value(plan_.root(id));
    return static_cast<size_t>(root.shape.elements()) * dtype_bytes(root.dtype);
  }
  int64_t owner_of_scratch(size_t step) const {
    return static_cast<int64_t>(plan_.values.size() + step);
  }
  const std::byte* scratch_of(size_t step) const {
    return static_cast<const std::byte*>(program_.calls()[step].args.scratch);
  }
  void take_scratch(size_t step, size_t count) {
    if (scratch_of(step) != nullptr) owners_.take(scratch_of(step), count, owner_of_scratch(step));
  }
  void expect(ValueId id) {
    if (is_temp(id))
      expect(plan_.root(id), plan_.value(id).name, program_.address(plan_.root(id)), bytes(id));
  }
  void expect_scratch(size_t step, size_t count) {
    if (scratch_of(step) != nullptr)
      expect(owner_of_scratch(step), cat("scratch of step ", step), scratch_of(step), count);
  }
  void expect(int64_t owner, const std::string& name, const std::byte* from, size_t count) {
    const int64_t other = owners_.other_than(owner, from, count);
    if (other == owner) return;
    const auto values = static_cast<int64_t>(plan_.values.size());
    ADD_FAILURE() << where_ << ": " << name << " lies where "
                  << (other == Owners::kNobody ? "nothing"
                      : other < values         ? plan_.value(static_cast<ValueId>(other)).name
                                               : cat("scratch of step ", other - values))
                  << " was written";
  }

  const Plan& plan_;
  const FlatProgram& program_;
  std::vector<size_t> scratch_;
  std::span<const StepGroup> groups_;
  std::vector<bool> written_;  // by root
  std::set<size_t> ahead_;     // steps whose matrix was made ahead
  Owners owners_;
  std::string where_;
};

std::map<std::string, int> made_together;  // how often, by name_of()

// Compiled over weights and states that nobody reads.
void follow(Backend& backend, const Plan& plan) {
  const std::vector<WeightForm> forms = backend.weight_forms(plan);
  Bindings bindings(plan.values.size());
  for (size_t i = 0; i < plan.values.size(); ++i) {
    const Value& v = plan.values[i];
    if (v.root != static_cast<ValueId>(i)) continue;
    if (v.kind == Kind::kState) bindings[i] = backend.allocate(v.dtype, v.shape.elements());
    if (v.kind == Kind::kWeight)
      bindings[i] = backend.allocate(DType::kU8, backend.weight_bytes(v, forms[i]));
  }
  const std::vector<size_t> scratch = backend.select(plan).scratch_bytes();
  const std::unique_ptr<Program> program = backend.compile(plan, bindings);
  const std::vector<StepGroup> groups = groups_of(*program);
  for (const StepGroup& g : groups)
    if (g.second - g.first > 1) ++made_together[name_of(plan, g)];
  Follower(plan, dynamic_cast<const FlatProgram&>(*program), scratch, groups).run();
  for (const std::string& complaint : card::take_complaints()) ADD_FAILURE() << complaint;
}

TrainingKind kind_named(std::string_view name) { return training_kinds({name}).front(); }

ModelConfig shape(const std::string& name, int64_t layers) {
  ModelConfig config = read_config(shape_config(name), Json::object(), "test");
  config.layers = layers;
  config.windows.assign(static_cast<size_t>(layers), 0);
  return config;
}
// Nothing of it is as wide as the kernels' tiles.
ModelConfig odd_shape(int64_t head_dim = 16) {
  ModelConfig config = small_model(3);
  config.hidden = 96;
  config.head_dim = head_dim;
  config.vocab = 777;
  config.windows[1] = 20;
  return config;
}

card::Card card_named(const std::string& name) {
  for (const card::Card& card : card::cards())
    if (card.name == name) return card;
  fail(ErrorCode::kNotFound, name);
}

struct Numbers {
  DType compute, weights;
};

// A model and what is trained of it.
struct Case {
  ModelConfig config;
  ModelWeights weights;
  Adapter adapter;
  Trainable trained;

  Case(const ModelConfig& c, const TrainingKind& kind, Numbers numbers)
      : config(c),
        weights(ModelWeights::random(c, 5, DType::kBF16)),
        adapter(Adapter::create(kind.lora, adaptable_linears(c))) {
    weights.compute_in(numbers.compute);
    if (dtype_is_quantized(numbers.weights)) weights.quantize_to(numbers.weights);
    trained = kind.trained(config, adapter);
  }

  StepOptions options(const Backend& backend, int64_t tokens) const {
    StepOptions o;
    o.limits = {tokens, tokens / 2};
    o.positions = tokens;
    o.skips_rows = backend.skips_rows();
    return o;
  }
  void train(Backend& backend, int64_t tokens, int64_t recompute) const {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, recompute " << recompute);
    StepOptions o = options(backend, tokens);
    o.recompute_blocks = recompute;
    o.split_prefix = first_trained_block(trained, config) > 0;
    const TrainStep step(config, weights, trained, o);
    follow(backend, step.micro_plan());
    if (recompute != 0) return;
    follow(backend, step.score_plan());
    if (step.prefix() != nullptr) follow(backend, step.prefix()->plan());
  }
  void update(Backend& backend) const {
    for (const Op op : {Op::kAdamw, Op::kAdamw8, Op::kSgd, Op::kLion, Op::kMuon, Op::kAdafactor}) {
      SCOPED_TRACE(op_name(op));
      StepOptions o = options(backend, 32);
      o.optimizer = op;
      follow(backend, TrainStep(config, weights, trained, o).update_plan());
    }
  }
  void generate(Backend& backend, int64_t tokens, bool adapted) const {
    SCOPED_TRACE(testing::Message() << "generates " << tokens);
    const auto plan = DecoderEngine::record(
        config, weights, backend, adapted ? trained.source() : ParamSource{}, 8, 512, tokens);
    follow(backend, plan->plan());
  }
};

using Param = std::tuple<TrainingKind, std::string>;  // and a card
class CudaAlive : public testing::TestWithParam<Param> {};

TEST_P(CudaAlive, IsWhatALaunchReads) {
  const auto& [kind, name] = GetParam();
  card::use(card_named(name));
  const std::unique_ptr<Backend> backend = make_cuda_backend({.device = "cuda"});
  for (const ModelConfig& config : {odd_shape(), shape("qwen2.5-0.5b", 2), shape("qwen3-4b", 2)})
    for (const Numbers& numbers : {Numbers{DType::kBF16, DType::kBF16},
                                   {DType::kBF16, DType::kQ8G32},
                                   {DType::kBF16, DType::kQ4G64},
                                   {DType::kF32, DType::kBF16}}) {
      if (dtype_is_quantized(numbers.weights) && (kind.full || config.ffn % 64 != 0)) continue;
      SCOPED_TRACE(testing::Message()
                   << config.hidden << " x " << config.ffn << ", " << dtype_name(numbers.compute)
                   << " over " << dtype_name(numbers.weights));
      const Case made(config, kind, numbers);
      made.update(*backend);
      for (const int64_t tokens : {40, 256, 512, 2048, 8192})
        made.train(*backend, tokens, tokens == 512 ? 1 : 0);
      made.train(*backend, 2048, -1);
      if (kind.lanes > 1) continue;
      for (const int64_t tokens : {1, 8, 16, 512}) made.generate(*backend, tokens, true);
      for (const int64_t tokens : {1, 4}) made.generate(*backend, tokens, false);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, CudaAlive,
    testing::Combine(testing::ValuesIn(training_kinds({"plain", "two", "top", "dropout",
                                                       "dropout_in_one_half", "dora", "ends",
                                                       "wide", "full", "lanes", "lanes_dropout"})),
                     testing::Values("H200", "H20", "A100")),
    [](const auto& info) { return std::get<0>(info.param).name + "_" + std::get<1>(info.param); });

TEST(CudaLaunches, OfOtherLossesToo) {
  for (const char* name : {"H200", "A100"})
    for (const Numbers& numbers :
         {Numbers{DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kQ4G64}}) {
      card::use(card_named(name));
      const std::unique_ptr<Backend> backend = make_cuda_backend({.device = "cuda"});
      const Case made(shape("qwen2.5-0.5b", 2), kind_named("plain"), numbers);
      Case other(shape("llama-3.2-1b", 2), kind_named("plain"), numbers);
      other.config.vocab = made.config.vocab;
      const ReferenceModel asked{&other.config, &other.weights, {}, {}, true};
      const LossMaker losses[] = {
          [&] {
            PreferenceOptions o;
            o.attr.kind = PreferenceAttr::Kind::kDpo;
            o.pairs = 4;
            o.reference = asked;
            return std::make_unique<PreferenceLoss>(o);
          },
          [&] {
            return std::make_unique<DistillLoss>(DistillOptions{
                .teacher = asked, .config = &made.config, .weights = &made.weights, .alpha = 0.5f});
          }};
      for (const LossMaker& loss : losses)
        for (const int64_t tokens : {64, 1024}) {
          StepOptions o = made.options(*backend, tokens);
          o.loss = loss;
          const TrainStep step(made.config, made.weights, made.trained, o);
          SCOPED_TRACE(testing::Message() << name << ", " << tokens << " tokens");
          follow(*backend, step.micro_plan());
          follow(*backend, *step.loss_kind()->beside_plan());
        }
    }
}

// So that these tests see what they are for.
TEST(CudaLaunches, MakeStepsTogether) {
  card::use(card_named("H200"));
  const std::unique_ptr<Backend> backend = make_cuda_backend({.device = "cuda"});
  made_together.clear();
  const Case small(shape("qwen2.5-0.5b", 2), kind_named("plain"), {DType::kBF16, DType::kQ4G64});
  small.generate(*backend, 1, false);
  EXPECT_GT(made_together["add_rms_norm linear rope copy copy attention linear"], 0);
  EXPECT_GT(made_together["add_rms_norm linear gated_act linear"], 0);
  for (const char* name : {"qwen2.5-0.5b", "qwen3-4b"})
    for (const TrainingKind& kind : training_kinds({"plain", "two"})) {
      const Case made(shape(name, 2), kind, {DType::kBF16, DType::kBF16});
      for (const int64_t tokens : {256, 512, 2048, 8192}) made.train(*backend, tokens, 0);
    }
  for (const char* steps :
       {"linear linear linear linear gated_act linear linear", "attention' rope'",
        "linear' attention' rope'", "linear' linear'", "linear' linear' gated_act'"})
    EXPECT_GT(made_together[steps], 0) << steps;
}

// Every card's kernels have the shared memory and the grids that the card allows.
TEST(CudaLaunches, AreWhatACardTakes) {
  for (card::Card card : card::cards())
    for (const bool fast_products : {true, false}) {
      card.fast_products = fast_products;
      card::use(card);
      const std::unique_ptr<Backend> backend = make_cuda_backend({.device = "cuda"});
      SCOPED_TRACE(backend->info().description);
      std::vector<ModelConfig> models = {shape("llama-3.1-8b", 1)};
      for (const int64_t head_dim : {40, 80, 96, 128, 256}) models.push_back(odd_shape(head_dim));
      for (const ModelConfig& config : models)
        for (const Numbers& numbers :
             {Numbers{DType::kBF16, DType::kBF16}, {DType::kF32, DType::kQ8G32}}) {
          const Case made(config, kind_named("plain"), numbers);
          made.update(*backend);
          for (const int64_t tokens : {40, 2048}) made.train(*backend, tokens, 0);
          for (const int64_t tokens : {1, 8, 512}) made.generate(*backend, tokens, true);
        }
    }
}

}  // namespace
}  // namespace wick
