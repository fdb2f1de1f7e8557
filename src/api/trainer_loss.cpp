// SPDX-License-Identifier: Apache-2.0
// What --loss asks for: how rows are read, what stands beside the trained model, and the loss.
#include <algorithm>

#include "api/trainer_impl.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "data/preference.h"
#include "train/distill.h"
#include "train/preference.h"

namespace wick {

namespace {

bool is_preference(const std::string& loss) {
  return loss == "dpo" || loss == "simpo" || loss == "orpo" || loss == "kto";
}

PreferenceAttr attributes(const TrainOptions& o) {
  PreferenceAttr a;
  a.kind = o.loss == "simpo"  ? PreferenceAttr::Kind::kSimpo
           : o.loss == "orpo" ? PreferenceAttr::Kind::kOrpo
           : o.loss == "kto"  ? PreferenceAttr::Kind::kKto
                              : PreferenceAttr::Kind::kDpo;
  a.beta = static_cast<float>(o.beta);
  a.gamma = static_cast<float>(o.simpo_gamma);
  a.smoothing = static_cast<float>(o.label_smoothing);
  a.desirable = static_cast<float>(o.desirable_weight);
  a.undesirable = static_cast<float>(o.undesirable_weight);
  return a;
}

// Of its numbers, and of what they mean.
std::string adapter_key(const Adapter& adapter, const std::vector<float>& params) {
  std::string meaning;
  for (const ParamLayout::Entry& e : adapter.layout().entries())
    meaning += cat(e.name, e.shape.str());
  for (const LoraModule& m : adapter.modules()) meaning += cat(" ", m.scale);
  return cat(crc32c(std::as_bytes(std::span(params))), " ",
             crc32c(std::as_bytes(std::span(meaning))));
}

}  // namespace

void Trainer::Impl::check_loss() {
  TrainOptions& o = options;
  auto refuse = [](const std::string& what) { fail(ErrorCode::kInvalidArgument, what); };
  auto in_range = [&](const char* name, double x, double low, double high) {
    if (!(x >= low && x <= high))
      refuse(cat("--", name, " is ", x, ", wanted ", low, " to ", high));
  };
  if (o.loss != "distill" && !o.teacher.empty())
    refuse("--teacher is for --loss distill; add that, or leave it out");
  if (o.loss == "sft") return;
  if (o.loss == "distill") {
    if (o.teacher.empty()) refuse("--loss distill needs --teacher: the folder of a model");
    in_range("distill-temperature", o.distill_temperature, 0.01, 100.0);
    in_range("distill-alpha", o.distill_alpha, 0.0, 1.0);
    return;
  }
  if (!is_preference(o.loss))
    refuse(cat("--loss is \"", o.loss, "\", wanted sft, dpo, simpo, orpo, kto or distill"));
  if (o.beta < 0) o.beta = o.loss == "simpo" ? 2.0 : 0.1;
  in_range("beta", o.beta, 0.0, 1e6);
  // Only orpo's likelihood does not hang on it. Less than a float has is 0 as well.
  if (static_cast<float>(o.beta) == 0 && o.loss != "orpo")
    refuse(cat("--beta is ", o.beta, ": --loss ", o.loss,
               " would give every answer the same reward and learn nothing; wanted more than 0"));
  in_range("label-smoothing", o.label_smoothing, 0.0, 0.5);
  in_range("simpo-gamma", o.simpo_gamma, 0.0, 1e6);
  in_range("desirable-weight", o.desirable_weight, 0.0, 1e6);
  in_range("undesirable-weight", o.undesirable_weight, 0.0, 1e6);
  if (o.loss == "kto" && o.desirable_weight == 0 && o.undesirable_weight == 0)
    refuse("--desirable-weight and --undesirable-weight are both 0: nothing would be learnt");
  if (o.loss == "kto" && o.batch_size * o.grad_accumulation_steps < 2)
    refuse(
        "--loss kto compares the answers of an update with each other: --batch-size times "
        "--grad-accumulation-steps must be at least 2");
  // The mask is what says where an answer begins.
  o.dataset.mask_prompt = true;
}

PairRows Trainer::Impl::pair_rows() const {
  if (!is_preference(options.loss)) return PairRows::kNone;
  return options.loss == "orpo"  ? PairRows::kWithPrompt
         : options.loss == "kto" ? PairRows::kLabels
                                 : PairRows::kPairs;
}

PackLimits Trainer::Impl::loss_limits() const {
  if (options.loss != "kto") return {};
  size_t prompt = 0, answer = 0;
  for (const ExampleSet* set : {&train, valid ? &*valid : nullptr})
    for (int64_t i = 0; set && i < set->size(); ++i)
      for (const SequenceView& s : sequences_of((*set)[i])) {
        prompt = std::max(prompt, s.prompt_tokens());
        answer = std::max(answer, s.ids.size() - s.prompt_tokens());
      }
  const int64_t longest =
      std::min(static_cast<int64_t>(prompt + answer), options.dataset.max_seq_length);
  return {(longest + 15) / 16 * 16, 0};
}

void Trainer::Impl::note_adapter(const Model::Impl& base, const Adapter& loaded,
                                 const std::string& path) {
  if (const std::string note = adapter_note(base, loaded, path); !note.empty())
    messages.push_back("warning: " + note);
}

// Another model, which is only asked.
ReferenceModel Trainer::Impl::open_beside(const char* flag, const std::string& path,
                                          const std::string& with_adapter) {
  Model::Impl& m = model->impl();
  if (!beside) {  // a sweep has one for all its adapters
    ModelOptions second;
    second.model = path;
    second.dtype = dtype_name(m.weights->compute());
    beside = std::make_shared<Model>(Model::load(model->engine(), second));
  }
  Model::Impl& b = beside->impl();
  if (b.config.vocab != m.config.vocab)
    fail(ErrorCode::kInvalidArgument, flag, " ", path, " has ", b.config.vocab,
         " tokens and the model ", m.config.vocab, "; both must have the same vocabulary");
  int64_t longest = 0;
  for (int64_t i = 0; i < train.size(); ++i)
    longest = std::max(longest, static_cast<int64_t>(train[i].ids.size()));
  if (train.size() > 0 && pair_rows() == PairRows::kNone && longest > b.config.max_positions)
    fail(ErrorCode::kInvalidArgument, flag, " ", path, " reads at most ", b.config.max_positions,
         " tokens and the longest row has ", longest, "; use --max-seq-length ",
         b.config.max_positions);
  ReferenceModel asked{&b.config, &*b.weights, {}, nullptr, true};
  if (!with_adapter.empty()) {
    reference_adapter = std::make_shared<Adapter>(
        Adapter::load(with_adapter, adaptable_linears(b.config), reference_params));
    note_adapter(b, *reference_adapter, with_adapter);
    asked.source.adapter = reference_adapter.get();
    asked.params = &reference_params;
  }
  return asked;
}

void Trainer::Impl::open_reference() {
  const TrainOptions& o = options;
  if (o.loss == "distill") {
    reference = open_beside("--teacher", o.teacher, o.teacher_adapter);
    const Adapter* a = reference->source.adapter;
    if (a && (a->find("lm_head") || a->find_whole("lm_head") ||
              (reference->config->tied && a->tokens())))
      fail(
          ErrorCode::kUnsupported, "--teacher-adapter ", o.teacher_adapter,
          " changes the teacher's head, which is compared as its file has it; merge it first: wick "
          "merge --model ",
          o.teacher, " --adapter-path ", o.teacher_adapter, " --save-path OUT, then --teacher OUT");
    return;
  }
  if (o.loss != "dpo" && o.loss != "kto") return;
  Model::Impl& m = model->impl();
  if (o.reference == "none") return;
  const int64_t rows = train.size() + (valid ? valid->size() : 0);
  if (!forecast.assumed_rows)
    messages.push_back(cat("before the first update the reference reads all ", rows, " rows once"));
  if (o.reference == "base") {
    // DPO asks once, before the first update, and then the state it asks is that of the model that
    // is trained; KTO asks on.
    if (o.loss == "kto")
      reference =
          ReferenceModel{&m.config, &*m.weights, adapter ? trainable->source() : ParamSource{},
                         &start_params, adapter == nullptr};
    return;
  }
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::path(o.reference) / "adapter_config.json",
                              ignored)) {
    reference_adapter = std::make_shared<Adapter>(
        Adapter::load(o.reference, adaptable_linears(m.config), reference_params));
    note_adapter(m, *reference_adapter, o.reference);
    reference =
        ReferenceModel{&m.config, &*m.weights, {reference_adapter.get()}, &reference_params};
    return;
  }
  reference = open_beside("--reference", o.reference, "");
}

bool Trainer::Impl::has_pairs() const {
  for (const Impl* run : runs())
    for (const ExampleSet* set : {&run->train, run->valid ? &*run->valid : nullptr})
      for (int64_t i = 0; set && i < set->size(); ++i)
        if (sequences_of((*set)[i]).size() > 1) return true;
  return false;
}

LossMaker Trainer::Impl::loss_maker(ModelWeights& base) const {
  if (options.loss == "distill") {
    const Model::Impl& m = model->impl();
    DistillOptions d;
    d.teacher = *reference;
    d.config = &m.config;
    d.weights = &base;
    d.temperature = static_cast<float>(options.distill_temperature);
    d.alpha = static_cast<float>(options.distill_alpha);
    d.lanes = 1 + static_cast<int64_t>(others.size());
    return [d] { return std::make_unique<DistillLoss>(d); };
  }
  if (!is_preference(options.loss)) return nullptr;
  PreferenceOptions p;
  p.attr = attributes(options);
  p.pairs = options.batch_size * options.grad_accumulation_steps;
  p.max_tokens = options.dataset.max_seq_length;
  p.uses_reference =
      (options.loss == "dpo" || options.loss == "kto") && options.reference != "none";
  p.reference = reference;
  if (p.reference && p.reference->weights == &*model->impl().weights) p.reference->weights = &base;
  p.seed = options.seed;
  p.packing = options.packing;
  p.lanes = 1 + static_cast<int64_t>(others.size());
  return [p] { return std::make_unique<PreferenceLoss>(p); };
}

void Trainer::Impl::identify_loss(Json& j) const {
  const TrainOptions& o = options;
  j["loss"] = o.loss;
  if (o.loss == "sft") return;
  if (o.loss == "distill") {
    j["teacher"] = o.teacher;
    j["teacher_adapter"] = o.teacher_adapter;
    if (beside) j["teacher_weights"] = cat(beside->impl().weights->fingerprint());
    if (reference_adapter)
      j["teacher_adapter_weights"] = adapter_key(*reference_adapter, reference_params);
    j["distill_temperature"] = o.distill_temperature;
    j["distill_alpha"] = o.distill_alpha;
    return;
  }
  j["beta"] = o.beta;
  if (o.loss == "dpo" || o.loss == "simpo") j["label_smoothing"] = o.label_smoothing;
  if (o.loss == "simpo") j["simpo_gamma"] = o.simpo_gamma;
  if (o.loss == "dpo" || o.loss == "kto") {
    j["reference"] = o.reference;
    if (reference_adapter)
      j["reference_weights"] = adapter_key(*reference_adapter, reference_params);
    else if (beside)
      j["reference_weights"] = cat(beside->impl().weights->fingerprint());
    // The state before the first update is asked again when a run goes on.
    if (o.reference == "base" && !o.init_adapter.empty())
      j["init_adapter"] = cat(crc32c(std::as_bytes(std::span(start_params))));
  }
  if (o.loss == "kto") {
    j["desirable_weight"] = o.desirable_weight;
    j["undesirable_weight"] = o.undesirable_weight;
  }
}

}  // namespace wick
