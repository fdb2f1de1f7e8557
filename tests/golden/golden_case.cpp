// SPDX-License-Identifier: Apache-2.0
#include "golden/golden_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <unordered_map>

#include "io/model_files.h"

namespace wick::golden {

namespace {

std::string golden_folder() { return std::string(WICK_SOURCE_DIR) + "/tests/golden"; }

template <typename T>
std::vector<T> read_tensor(const SafetensorsFile& file, const std::string& name, DType dtype) {
  const TensorInfo* info = file.find(name);
  WICK_CHECK(info && info->dtype == dtype, name, " of ", file.path().string());
  std::vector<T> out(file.bytes(*info).size() / sizeof(T));
  std::memcpy(out.data(), file.bytes(*info).data(), out.size() * sizeof(T));
  return out;
}

// What one program is bound to and fed with, collected while its plan is recorded.
struct Setup {
  Setup(Case& golden, Backend& device, bool training)
      : c(golden), backend(device), r(plan, training) {}

  Case& c;
  Backend& backend;
  Plan plan;
  Recorder r;
  Bindings bindings;
  std::vector<std::pair<ValueId, std::vector<int32_t>>> int_feeds;
  std::vector<std::pair<ValueId, std::vector<float>>> float_feeds;
  std::unordered_map<std::string, ValueId> weights;

  ValueId bind(ValueId id, BufferPtr buffer) {
    bindings.resize(std::max(bindings.size(), static_cast<size_t>(id) + 1));
    bindings[static_cast<size_t>(id)] = std::move(buffer);
    return id;
  }
  ValueId state(const char* name, const BufferPtr& buffer, int64_t count) {
    return bind(r.state(name, {count}, DType::kF32), buffer);
  }
  ValueId feed(const char* name, std::vector<int32_t> data) {
    ValueId id = r.feed(name, {static_cast<int64_t>(data.size())}, DType::kI32);
    int_feeds.emplace_back(id, std::move(data));
    return id;
  }
  ValueId feed(const char* name, std::vector<float> data, Shape shape) {
    ValueId id = r.feed(name, shape, DType::kF32);
    float_feeds.emplace_back(id, std::move(data));
    return id;
  }
  ValueId weight(const WeightSpec& spec) {
    auto [at, fresh] = weights.try_emplace(spec.name, kNone);
    if (fresh)
      at->second = bind(r.weight(spec.name, spec.shape, c.weights.dtype(spec)),
                        c.weights.buffer(spec, backend));
    return at->second;
  }

  // Rows one after the other; each token sees its row from the first token to itself.
  DecoderContext context(const std::vector<int32_t>& ids, const std::vector<int32_t>& starts) {
    std::vector<int32_t> positions, begin, end;
    for (size_t row = 0; row + 1 < starts.size(); ++row)
      for (int32_t t = starts[row]; t < starts[row + 1]; ++t) {
        positions.push_back(t - starts[row]);
        begin.push_back(starts[row]);
        end.push_back(t + 1);
      }
    DecoderContext context;
    context.tokens = static_cast<int64_t>(ids.size());
    context.ids = feed("ids", ids);
    context.positions = feed("positions", std::move(positions));
    context.begin = feed("begin", std::move(begin));
    context.end = feed("end", std::move(end));
    context.rope_table = feed("rope_table", rope_table(c.config, context.tokens),
                              {context.tokens, c.config.head_dim});
    context.weight = [this](const WeightSpec& spec) { return weight(spec); };
    return context;
  }

  std::unique_ptr<Program> compile() {
    check(plan);
    bindings.resize(plan.values.size());
    auto program = backend.compile(plan, bindings);
    for (auto& [id, data] : int_feeds) program->feed(id, data.data(), data.size() * 4);
    for (auto& [id, data] : float_feeds) program->feed(id, data.data(), data.size() * 4);
    return program;
  }
};

BufferPtr upload(Backend& backend, const std::vector<float>& data) {
  auto count = static_cast<int64_t>(data.size());
  BufferPtr buffer = backend.allocate(DType::kF32, count);
  backend.upload(*buffer, DType::kF32, 0, count, data.data());
  return buffer;
}

ModelConfig load_config(const std::string& folder) {
  ModelFolder files = open_model_folder(folder);
  return read_config(files.config, files.generation_config, folder);
}

}  // namespace

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder()))
    if (std::filesystem::exists(entry.path() / "expected.json"))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

Case::Case(const std::string& name)
    : folder(golden_folder() + "/" + name),
      meta(read_json(folder + "/expected.json")),
      expected(folder + "/expected.safetensors"),
      config(load_config(folder)),
      weights(ModelWeights::open(folder, config)),
      adapter(Adapter::load(folder + "/adapter", adaptable_linears(config), adapter_params)) {}

std::vector<float> Case::floats(const std::string& tensor) const {
  return read_tensor<float>(expected, tensor, DType::kF32);
}

std::vector<int32_t> Case::ints(const std::string& tensor) const {
  return read_tensor<int32_t>(expected, tensor, DType::kI32);
}

std::vector<float> logits(Case& c, Backend& backend, const std::vector<int32_t>& ids,
                          bool with_adapter) {
  Setup s(c, backend, false);
  DecoderContext context = s.context(ids, {0, static_cast<int32_t>(ids.size())});
  if (with_adapter) {
    context.adapter.adapter = &c.adapter;
    context.adapter.params =
        s.state("params", upload(backend, c.adapter_params), c.adapter.param_count());
  }
  ValueId x = record_decoder(s.r, c.config, context);
  ValueId y = s.r.linear(x, head_weight(c.config, context));
  s.plan.results.push_back(y);
  fuse(s.plan);
  auto program = s.compile();
  program->run();
  program->wait();
  std::vector<float> out(ids.size() * static_cast<size_t>(c.config.vocab));
  program->read(y, out.data(), out.size() * sizeof(float));
  return out;
}

Trainer::Trainer(Case& c, Backend& backend, const Options& options) : c_(c), backend_(backend) {
  std::vector<float> start;
  std::unordered_map<std::string, int64_t> offset;  // of a spec, its parts one after the other
  if (options.trained == Trained::kAdapter) {
    layout_ = c.adapter.layout();
    start = c.adapter_params;
  } else {
    for (const WeightSpec& spec : weight_specs(c.config)) {
      offset[spec.name] = layout_.size();
      for (const WeightSpec::Part& part : spec.parts) layout_.add(part.tensor, part.shape);
      std::vector<float> numbers = c.weights.read_floats(spec);
      start.insert(start.end(), numbers.begin(), numbers.end());
    }
  }
  const int64_t count = layout_.size();
  params_ = upload(backend, start);
  grads_ = backend.allocate(DType::kF32, count);
  m_ = backend.allocate(DType::kF32, count);
  v_ = backend.allocate(DType::kF32, count);

  Setup s(c, backend, true);
  DecoderContext context = s.context(c.ints("input_ids"), c.ints("row_starts"));
  context.recompute = options.recompute;
  ValueId params = s.state("params", params_, count), grads = s.state("grads", grads_, count);
  if (options.trained == Trained::kAdapter) {
    context.adapter.adapter = &c.adapter;
    context.adapter.params = params;
  } else {
    context.weight = [&](const WeightSpec& spec) {
      auto [at, fresh] = s.weights.try_emplace(spec.name, kNone);
      if (fresh) at->second = s.r.flat(params, offset.at(spec.name), spec.shape, spec.name);
      return at->second;
    };
  }
  std::vector<int32_t> rows, targets, all = c.ints("targets");
  for (size_t t = 0; t < all.size(); ++t)
    if (all[t] >= 0) {
      rows.push_back(static_cast<int32_t>(t));
      targets.push_back(all[t]);
    }
  // A few rows more than carry loss, as a fixed bound has them.
  const size_t trained = rows.size(), bound = trained + 3;
  rows.resize(bound, -1);
  targets.resize(bound, -1);
  std::vector<int32_t> segment(bound, -1);
  std::vector<float> share(bound, 0.0f);
  std::fill_n(segment.begin(), trained, 0);
  std::fill_n(share.begin(), trained, -1.0f / static_cast<float>(trained));
  ValueId x = record_decoder(s.r, c.config, context);
  x = s.r.gather_rows(x, s.feed("rows", rows));
  ValueId logp = s.r.head(x, head_weight(c.config, context), s.feed("targets", targets));
  loss_ = s.r.segment_sum(logp, s.feed("share", share, {static_cast<int64_t>(bound)}),
                          s.feed("segment", segment), 1);
  if (options.fused) fuse(s.plan);
  backward(s.r, loss_, params, grads);
  step_ = s.compile();

  Setup o(c, backend, false);
  hyper_ = o.r.feed("hyper", {8}, DType::kF32);
  ValueId own_params = o.state("params", params_, count), m = o.state("m", m_, count),
          v = o.state("v", v_, count), own_grads = o.state("grads", grads_, count);
  norm_ = o.r.grad_norm(own_grads);
  o.plan.results.push_back(norm_);
  AdamwAttr attr;
  attr.groups = {{0, count}};
  o.r.adamw(hyper_, norm_, own_params, m, v, own_grads, attr);
  optimizer_ = o.compile();
}

float Trainer::forward_backward() {
  step_->run();
  step_->wait();
  float loss = 0;
  step_->read(loss_, &loss, sizeof loss);
  return loss;
}

float Trainer::update() {
  ++updates_;
  const Json& o = c_.meta["optimizer"];
  // The corrections are those of the rounded betas: 1 - 0.999f differs from 0.001 by 1e-5.
  const float beta1 = o["betas"][0].get<float>(), beta2 = o["betas"][1].get<float>();
  auto correction = [&](float beta) {
    return static_cast<float>(1.0 - std::pow(static_cast<double>(beta), updates_));
  };
  const float hyper[8] = {o["lr"].get<float>(),
                          beta1,
                          beta2,
                          o["eps"].get<float>(),
                          o["weight_decay"].get<float>(),
                          o["clip"].get<float>(),
                          correction(beta1),
                          correction(beta2)};
  optimizer_->feed(hyper_, hyper, sizeof hyper);
  optimizer_->run();
  optimizer_->wait();
  float norm = 0;
  optimizer_->read(norm_, &norm, sizeof norm);
  return norm;
}

std::vector<float> Trainer::params() const {
  std::vector<float> out(static_cast<size_t>(layout_.size()));
  backend_.download(*params_, DType::kF32, 0, layout_.size(), out.data());
  return out;
}

std::vector<float> Trainer::part(const BufferPtr& buffer, const std::string& tensor) const {
  const ParamLayout::Entry* entry = layout_.find(tensor);
  WICK_CHECK(entry != nullptr, tensor);
  std::vector<float> out(static_cast<size_t>(entry->shape.elements()));
  backend_.download(*buffer, DType::kF32, entry->offset, entry->shape.elements(), out.data());
  return out;
}

}  // namespace wick::golden
