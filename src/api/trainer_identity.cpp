// SPDX-License-Identifier: Apache-2.0
// What a run is, as its checkpoints say it: where any of it is another, a resumed run would not end
// in the same bits.
#include "api/trainer_impl.h"
#include "base/crc32c.h"

namespace wick {

Json kind_of(const TrainOptions& o, bool all) {
  const TrainOptions usual;
  Json j = Json::object();
  auto add = [&](const char* key, const auto& value, const auto& otherwise) {
    if (all || value != otherwise) j[key] = value;
  };
  auto add_pattern = [&](const char* key, const auto& pattern) {
    if (all) j[key] = Json::object();
    for (const auto& [name, value] : pattern) j[key][name] = value;
  };
  add("rslora", o.rslora, usual.rslora);
  add("dora", o.dora, usual.dora);
  add("init", o.init, usual.init);
  add("bias", o.bias, usual.bias);
  add("lora_plus_ratio", o.lora_plus_ratio, usual.lora_plus_ratio);
  add_pattern("rank_pattern", o.rank_pattern);
  add_pattern("alpha_pattern", o.alpha_pattern);
  add("layers_to_transform", o.layers_to_transform, usual.layers_to_transform);
  add("exclude_modules", o.exclude_modules, usual.exclude_modules);
  add("modules_to_save", o.modules_to_save, usual.modules_to_save);
  add("trainable_token_indices", o.trainable_token_indices, usual.trainable_token_indices);
  return j;
}

Json Trainer::Impl::identity() const {
  const TrainOptions& o = options;
  const Model::Impl& m = model->impl();
  Json j;
  j["model"] = m.name();
  j["parameters"] = weight_count(m.config);
  j["weights"] = cat(m.weights->fingerprint());
  j["weights_type"] = dtype_name(m.weights->dtype(weight_specs(m.config).front()));
  j["dtype"] = dtype_name(m.weights->compute());
  j["data"] = train.file();
  j["rows"] = train.size();
  j["date"] = o.dataset.date;
  j["data_fingerprint"] = cat(train.fingerprint());
  j["fine_tune_type"] = o.fine_tune_type;
  j["trainable"] = adapter ? adapter->param_count() : trainable->layout.size();
  j["targets"] = o.targets;
  j["rank"] = o.rank;
  j["alpha"] = o.alpha;
  j["dropout"] = o.dropout;
  j["num_layers"] = o.num_layers;
  j.update(kind_of(o, true));
  if (!o.init_adapter.empty()) identify_init(j);
  j["batch_size"] = o.batch_size;
  j["grad_accumulation_steps"] = o.grad_accumulation_steps;
  j["updates"] = forecast.updates;
  j["seed"] = o.seed;
  j["shuffle"] = o.shuffle;
  j["packing"] = o.packing;
  j["pack_tokens"] = joint_limits.tokens;
  j["pack_targets"] = joint_limits.targets;
  const DeviceInfo device = m.backend().info();
  j["device"] = device.isa.empty() ? device.name : device.name + " " + device.isa;
  j["optimizer"] = o.optimizer;
  j["learning_rate"] = o.learning_rate;
  j["lr_schedule"] = o.lr_schedule;
  j["warmup"] = o.warmup;
  j["warmup_init"] = o.warmup_init;
  j["warmup_from_init"] = o.warmup_from_init;
  j["lr_end"] = o.lr_end;
  j["lr_decay_steps"] = o.lr_decay_steps;
  if (o.lr_schedule == "cosine_with_restarts") j["lr_cycles"] = o.lr_cycles;
  if (o.lr_schedule == "wsd") j["lr_decay_share"] = o.lr_decay_share;
  if (o.lr_schedule == "exponential_decay" || o.lr_schedule == "step_decay")
    j["lr_decay_rate"] = o.lr_decay_rate;
  if (o.lr_schedule == "step_decay") j["lr_step_size"] = o.lr_step_size;
  j["weight_decay"] = o.weight_decay;
  j["grad_clip"] = o.grad_clip;
  // The constants of this optimizer, whatever their names.
  const Hyper first = optimizer_hyper(o, o.learning_rate, 1);
  j["optimizer_constants"] = std::vector<float>(first.begin() + 1, first.end());
  // Those of its settings that the first update's constants do not show.
  if (o.optimizer == "adafactor") {
    j["decay_rate"] = o.decay_rate;
    j["relative_step"] = o.relative_step;
    j["adafactor_warmup_init"] = o.relative_step_warmup;
  }
  j["early_stop"] = o.early_stop;
  j["keep_best"] = o.early_stop > 0 || o.keep_best;
  if (j["keep_best"]) {
    j["early_stop_delta"] = o.early_stop_delta;
    j["steps_per_eval"] = o.steps_per_eval;
    j["val_batches"] = o.val_batches;
    j["valid_fingerprint"] = valid ? cat(valid->fingerprint()) : "";
  }
  j["skip_below"] = o.skip_below;
  j["mask_prompt"] = o.dataset.mask_prompt;
  j["max_seq_length"] = o.dataset.max_seq_length;
  identify_loss(j);
  j[kOrder] = plan_order;
  j[kOrder]["packs"] = pack_key();
  j[kOrder]["trained"] = trained_key();
  return j;
}

// What an adapter to start from brings; the options have defaults there, which nobody uses.
void Trainer::Impl::identify_init(Json& j) const {
  const LoraOptions& own = adapter->options();
  j["rank"] = own.rank;
  j["alpha"] = own.alpha;
  j["dropout"] = own.dropout;
  j["rslora"] = own.rslora;
  j["dora"] = own.dora;
  j["rank_pattern"] = j["alpha_pattern"] = Json::object();
  for (const auto& [name, rank] : own.rank_pattern) j["rank_pattern"][name] = rank;
  for (const auto& [name, alpha] : own.alpha_pattern) j["alpha_pattern"][name] = alpha;
}

// The flat parameters have no names: others of the same size would be taken for these.
std::string Trainer::Impl::trained_key() const {
  std::string names;
  for (const ParamLayout::Entry& e : (adapter ? adapter->layout() : trainable->layout).entries())
    names += cat(e.name, e.shape.str());
  if (adapter) {
    // A and B of PiSSA mean nothing without the start that is taken off the base.
    if (adapter->options().init == "pissa") names += " pissa";
    if (adapter->tokens())
      for (int64_t id : adapter->tokens()->ids) names += cat(" ", id);
  }
  return cat(crc32c(std::as_bytes(std::span(names))));
}

}  // namespace wick
