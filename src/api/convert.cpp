// SPDX-License-Identifier: Apache-2.0
// Merge and unmerge. A merged folder is a plain model folder plus wick_merge.json: which base and
// adapter it was made from, and a fingerprint of every tensor that changed, so that a restored base
// can be proved. A reversible merge also has wick_unmerge.safetensors: merged XOR base, by tensor.
#include <algorithm>
#include <cstring>
#include <set>

#include "api/internal.h"
#include "base/check.h"
#include "base/file.h"
#include "base/path_status.h"
#include "base/rng.h"
#include "base/threads.h"
#include "io/safetensors_writer.h"
#include "model/adapter_start.h"
#include "model/save.h"

namespace wick {

namespace fs = std::filesystem;

namespace {

constexpr const char* kMergeRecord = "wick_merge.json";
constexpr const char* kDifferences = "wick_unmerge.safetensors";

std::string fingerprint(std::span<const std::byte> bytes) {
  uint64_t h = name_key({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(h));
  return text;
}

// The file's tensor of the specs that an adapter touches, as spec and part.
struct Touched {
  const WeightSpec* spec;
  size_t part;
};

std::vector<std::byte> part_bytes(const std::vector<std::byte>& whole, const WeightSpec& spec,
                                  size_t part, DType dtype) {
  size_t at = 0;
  for (size_t i = 0; i < part; ++i)
    at += static_cast<size_t>(spec.parts[i].shape.elements()) * dtype_bytes(dtype);
  size_t size = static_cast<size_t>(spec.parts[part].shape.elements()) * dtype_bytes(dtype);
  auto first = whole.begin() + static_cast<ptrdiff_t>(at);
  return {first, first + static_cast<ptrdiff_t>(size)};
}

// As adapters name it: a bias is a module of its own.
std::string module_of(const std::string& tensor) {
  return tensor.ends_with(".bias") ? tensor : tensor.substr(0, tensor.rfind('.'));
}

bool touches(const Adapter& adapter, const std::string& tensor) {
  const std::string module = module_of(tensor);
  return adapter.find(module) || adapter.find_whole(module) ||
         (adapter.tokens() && adapter.tokens()->module == module);
}

// A tied folder has one table for embedding and head, which an adapter of one of them would part:
// refused. A copy that PEFT wrote beside the adapter and nothing has changed is left out of it.
void keep_tied(Adapter& adapter, const std::vector<float>& params, const Model::Impl& m,
               const std::string& adapter_path) {
  if (!m.config.tied) return;
  std::optional<std::vector<float>> table;
  for (const char* module : {"model.embed_tokens", "lm_head"}) {
    if (const WholeModule* whole = adapter.find_whole(module)) {
      for (const WeightSpec& spec : weight_specs(m.config))
        if (!table && spec.name == "model.embed_tokens.weight")
          table = m.weights->read_floats(spec);
      if (table && std::equal(table->begin(), table->end(), params.begin() + whole->offset))
        adapter.leave_whole(module);
    }
    if (adapter.find(module) || adapter.find_whole(module))
      fail(ErrorCode::kUnsupported, adapter_path, ": changes ", module, " alone, and in ", m.name(),
           " embedding and head are one tensor (tie_word_embeddings), so a merge would ",
           "change both; run the adapter beside the model (--model and --adapter-path), or train ",
           "one without ", module, " in --targets and --modules-to-save");
  }
}

void remove_record(const fs::path& folder) {
  for (const char* own : {kMergeRecord, kDifferences}) fs::remove(folder / own);
}

std::string base_path(const Model::Impl& m) {
  return m.folder.folder.empty() ? "" : fs::absolute(m.folder.folder).string();
}

// Whether the folder is what an earlier merge into the same base has written: then another one
// takes its place, as a run's result does that of the run before.
bool is_merge_of(const fs::path& folder, const Model::Impl& m) {
  std::error_code error;
  if (!fs::exists(folder / kMergeRecord, error)) return false;
  const Json record = read_json(folder / kMergeRecord);
  const Json* base = find_member(record, "base");
  return base && base->is_string() && base->get<std::string>() == base_path(m);
}

std::optional<DType> save_dtype_of(const MergeOptions& options) {
  if (options.save_dtype.empty()) return std::nullopt;
  const std::optional<DType> dtype = parse_dtype(options.save_dtype);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kBF16 && *dtype != DType::kF16))
    fail(ErrorCode::kInvalidArgument, "--save-dtype is \"", options.save_dtype,
         "\", wanted f32, bf16 or f16");
  if (options.reversible)
    fail(ErrorCode::kInvalidArgument,
         "--reversible keeps the base to the bit, so --save-dtype cannot be given with it");
  return dtype;
}

void refuse_codes(const Model::Impl& m) {
  for (const WeightSpec& spec : weight_specs(m.config))
    if (dtype_is_quantized(m.weights->dtype(spec)))
      fail(ErrorCode::kInvalidArgument, m.name(),
           ": is quantised, and a merge changes weights by less than a code; merge into the model "
           "that it was made from, or into what wick convert --dequantize writes");
}

// A weight with what the adapter does to its parts; nothing where it does nothing.
std::optional<std::vector<float>> merged_values(const Adapter& adapter,
                                                const std::vector<float>& params,
                                                const Model::Impl& m, const WeightSpec& spec,
                                                ThreadPool& pool) {
  std::optional<std::vector<float>> values;
  int64_t at = 0;
  for (const WeightSpec::Part& part : spec.parts) {
    if (touches(adapter, part.tensor)) {
      if (!values) values = m.weights->read_floats(spec);
      const std::string name = module_of(part.tensor);
      if (const LoraModule* module = adapter.find(name))
        adapter.merge(*module, params, values->data() + at, pool);
      if (const WholeModule* whole = adapter.find_whole(name))
        std::copy_n(params.data() + whole->offset, part.shape.elements(), values->data() + at);
      if (adapter.tokens() && adapter.tokens()->module == name)
        adapter.merge_tokens(params, values->data() + at);
    }
    at += part.shape.elements();
  }
  return values;
}

// Writes the record of the merge in `out`, where the merged weights are, and with `reversible` what
// takes it back. Returns how many tensors have changed.
size_t write_record(const Adapter& adapter, const Model::Impl& m, const MergeOptions& options,
                    const fs::path& out) {
  const std::vector<WeightSpec> specs = weight_specs(m.config);
  std::vector<Touched> touched;
  for (const WeightSpec& spec : specs)
    for (size_t i = 0; i < spec.parts.size(); ++i)
      if (touches(adapter, spec.parts[i].tensor)) touched.push_back({&spec, i});
  std::optional<SafetensorsWriter> writer;
  if (options.reversible) {
    writer.emplace(out / kDifferences);
    for (const Touched& t : touched) {
      const WeightSpec::Part& part = t.spec->parts[t.part];
      int64_t bytes =
          part.shape.elements() * static_cast<int64_t>(dtype_bytes(m.weights->dtype(*t.spec)));
      writer->declare(part.tensor, DType::kU8, {bytes});
    }
  }
  Json tensors = Json::object();
  SafetensorsSet result_files = SafetensorsSet::open(out);
  for (const Touched& t : touched) {
    const WeightSpec::Part& part = t.spec->parts[t.part];
    std::vector<std::byte> base =
        part_bytes(m.weights->read(*t.spec), *t.spec, t.part, m.weights->dtype(*t.spec));
    tensors[part.tensor] = fingerprint(base);
    if (!writer) continue;
    std::span<const std::byte> now = result_files.find(part.tensor).bytes();
    WICK_CHECK(now.size() == base.size(), part.tensor);
    for (size_t i = 0; i < base.size(); ++i) base[i] ^= now[i];
    writer->write(part.tensor, base);
  }
  if (writer) writer->commit();
  Json record;
  record["base"] = base_path(m);
  record["adapter"] = options.adapter_path;
  record["base_tensors"] = tensors;
  write_file(out / kMergeRecord, dump_json(record, 2) + "\n");
  return touched.size();
}

}  // namespace

void refuse_in_place(const fs::path& from, const char* whose, const fs::path& to) {
  if (to.empty()) fail(ErrorCode::kInvalidArgument, "--save-path is missing: name a new folder");
  std::error_code error;
  if (!from.empty() && fs::equivalent(from, to, error))
    fail(ErrorCode::kInvalidArgument, "--save-path ", to.string(), " is ", whose,
         " own folder; name another");
}

void refuse_replacing(const fs::path& to, bool overwrite) {
  if (overwrite) return;
  const std::vector<fs::path> model = files_of_model(to), adapter = files_of_adapter(to);
  if (model.empty() && adapter.empty()) return;
  const bool whole = std::find(model.begin(), model.end(), "config.json") != model.end();
  fail(ErrorCode::kInvalidArgument, "--save-path ", to.string(), " has ",
       whole           ? "a model (config.json)"
       : model.empty() ? cat("an adapter (", adapter.front().string(), ")")
                       : model.front().string(),
       " already; name another folder, or say --overwrite to replace what is there");
}

MergeResult merge_adapter(Engine& engine, const MergeOptions& options) {
  const EngineTurn turn(engine);
  if (options.adapter_path.empty())
    fail(ErrorCode::kInvalidArgument, "--adapter-path is missing: the adapter to merge");
  const std::optional<DType> save_dtype = save_dtype_of(options);
  ModelOptions model_options;
  model_options.model = options.model;
  Model model = Model::load(engine, model_options);
  const Model::Impl& m = model.impl();
  const fs::path out = options.save_path;
  refuse_in_place(m.folder.folder, "the model's", out);
  // An adapter may be named by its file.
  const fs::path adapter_path = options.adapter_path;
  refuse_in_place(
      is_folder_at(adapter_path) ? adapter_path : fs::absolute(adapter_path).parent_path(),
      "the adapter's", out);
  refuse_replacing(out, options.overwrite || is_merge_of(out, m));
  refuse_codes(m);
  std::vector<float> params;
  Adapter adapter = Adapter::load(options.adapter_path, adaptable_linears(m.config), params);

  ThreadPool pool(engine.device().threads);
  start_adapter(adapter, m.config, *m.weights, false, params, host_threads(m.backend()));
  keep_tied(adapter, params, m, options.adapter_path);
  NewFolder folder(out);
  const SavedWeights saved = save_weights(
      out, m.config, *m.weights, save_dtype,
      [&](const WeightSpec& spec) { return merged_values(adapter, params, m, spec, pool); },
      options.should_stop);
  remove_record(out);
  remove_replaced(out);
  MergeResult result;
  result.path = out.string();
  result.note = adapter_note(m, adapter, options.adapter_path);
  result.tensors = saved.tensors;
  result.changed = static_cast<int64_t>(write_record(adapter, m, options, out));
  result.bytes = saved.bytes;
  // Last, so that what looks like a model is one.
  write_model_files(m, out);
  folder.keep();
  return result;
}

MergeResult unmerge_adapter(const std::string& merged_path, const std::string& save_path,
                            const std::function<bool()>& should_stop, bool overwrite) {
  const fs::path from = merged_path, to = save_path;
  refuse_in_place(from, "the merged model's", to);
  refuse_replacing(to, overwrite);
  if (!path_exists(from / kMergeRecord))
    fail(ErrorCode::kNotFound, merged_path, ": has no ", kMergeRecord,
         "; it was not made by wick merge");
  Json record = read_json(from / kMergeRecord);
  const std::string where = (from / kMergeRecord).string();
  const Json* fingerprints = find_member(record, "base_tensors");
  if (!fingerprints || !fingerprints->is_object())
    fail(ErrorCode::kCorruptFile, where, ": has no base_tensors");
  SafetensorsSet merged = SafetensorsSet::open(from);

  std::optional<SafetensorsFile> differences;
  std::optional<SafetensorsSet> base;
  if (path_exists(from / kDifferences)) {
    differences.emplace(from / kDifferences);
  } else {
    std::string path = get_string(record, "base", where, "");
    if (path.empty()) {
      for (const EmbeddedFile& f : embedded_model_files())
        if (f.name == "model.safetensors")
          base = SafetensorsSet::of(SafetensorsFile(MappedFile::over(f.bytes, f.name)));
    } else if (is_folder_at(path)) {
      base = SafetensorsSet::open(path);
    }
    if (!base)
      fail(ErrorCode::kNotFound, where, ": the base it was merged from (",
           path.empty() ? "the embedded model" : path,
           ") is not there and the merge was not --reversible; bring the base back to that path");
  }

  auto original = [&](const std::string& name) -> std::vector<std::byte> {
    SafetensorsSet::Found now = merged.find(name);
    std::vector<std::byte> bytes(now.bytes().begin(), now.bytes().end());
    const Json* wanted = find_member(*fingerprints, name);
    if (base) {
      SafetensorsSet::Found found = base->find(name);
      if (!found)
        fail(ErrorCode::kInvalidArgument, where, ": the base has no tensor ", name,
             "; it has changed since the merge");
      bytes.assign(found.bytes().begin(), found.bytes().end());
    } else if (wanted) {
      const TensorInfo* info = differences->find(name);
      if (!info || differences->bytes(*info).size() != bytes.size())
        fail(ErrorCode::kCorruptFile, (from / kDifferences).string(), ": does not fit ", name);
      std::span<const std::byte> x = differences->bytes(*info);
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] ^= x[i];
    }
    if (wanted && (!wanted->is_string() || wanted->get<std::string>() != fingerprint(bytes)))
      fail(ErrorCode::kCorruptFile, where, ": ", name,
           " cannot be restored to the bit: its fingerprint differs; the base or the merged folder "
           "has changed since the merge");
    return bytes;
  };

  NewFolder folder(to);
  SafetensorsWriter writer(to / "model.safetensors");
  MergeResult result;
  for (const std::string& name : merged.names()) {
    SafetensorsSet::Found source = base ? base->find(name) : merged.find(name);
    if (!source || !source.info->dtype)
      fail(ErrorCode::kInvalidArgument, where, ": the base has no usable tensor ", name,
           "; it has changed since the merge");
    writer.declare(name, *source.info->dtype, source.info->shape);
  }
  for (const std::string& name : merged.names()) {
    if (should_stop && should_stop())
      fail(ErrorCode::kCancelled, "stopped; nothing was written to ", save_path);
    std::vector<std::byte> bytes = original(name);
    result.bytes += static_cast<int64_t>(bytes.size());
    result.changed += find_member(*fingerprints, name) != nullptr;
    ++result.tensors;
    writer.write(name, bytes);
  }
  writer.commit();
  remove_record(to);
  remove_replaced(to);
  copy_model_files(from, to);
  folder.keep();
  result.path = to.string();
  return result;
}

}  // namespace wick
