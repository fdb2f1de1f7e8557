// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/path_status.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace wick {

namespace {

constexpr const char* kFileName = "training_state.safetensors";
constexpr const char* kStatePrefix = "state.";
constexpr const char* kFormat = "wick-training-state";

std::string hex(uint32_t crc) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", crc);
  return text;
}

struct Tensor {
  std::string name;
  DType dtype = DType::kF32;
  std::span<const std::byte> bytes;
};

// Over the texts and every tensor's name and bytes, whatever their order in the file.
uint32_t checksum(const std::string& step, const std::string& run, const std::string& progress,
                  std::vector<Tensor> tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  uint32_t crc = 0;
  for (const std::string* text : {&step, &run, &progress})
    crc = crc32c(std::as_bytes(std::span(*text)), crc);
  for (const Tensor& t : tensors) {
    crc = crc32c(std::as_bytes(std::span(t.name)), crc);
    crc = crc32c(t.bytes, crc);
  }
  return crc;
}

void remove_leftovers(const std::filesystem::path& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    for (const char* kind : {".safetensors.tmp", ".json.tmp", ".html.tmp", ".wick.tmp"})
      if (entry.path().filename().string().find(kind) != std::string::npos)
        std::filesystem::remove(entry.path(), error);
}

}  // namespace

std::filesystem::path checkpoint_path(const std::filesystem::path& folder) {
  return folder / kFileName;
}

void save_checkpoint(const std::filesystem::path& folder, const Checkpoint& c) {
  make_folder(folder);
  remove_leftovers(folder);
  std::vector<Tensor> tensors = {{"params", DType::kF32, std::as_bytes(std::span(c.params))}};
  if (!c.best.empty()) tensors.push_back({"best", DType::kF32, std::as_bytes(std::span(c.best))});
  for (const CheckpointState& s : c.states)
    tensors.push_back({kStatePrefix + s.name, s.dtype, std::span(s.bytes)});
  const std::string step = std::to_string(c.step), run = dump_json(c.run),
                    progress = dump_json(c.progress);
  SafetensorsWriter writer(checkpoint_path(folder),
                           {{"format", kFormat},
                            {"step", step},
                            {"run", run},
                            {"progress", progress},
                            {"crc32c", hex(checksum(step, run, progress, tensors))}});
  for (const Tensor& t : tensors)
    writer.declare(t.name, t.dtype, {static_cast<int64_t>(t.bytes.size() / dtype_bytes(t.dtype))});
  for (const Tensor& t : tensors) writer.write(t.name, t.bytes);
  writer.commit();
}

namespace {

[[noreturn]] void fail_damaged(const std::filesystem::path& path, const std::string& how) {
  fail(ErrorCode::kCorruptFile, path.string(), ": ", how,
       ": the file was damaged after it was written; start again without --resume, or with a copy "
       "of it");
}

// It was written here, so that what safetensors' own messages advise does not apply.
SafetensorsFile open_checkpoint(const std::filesystem::path& path) {
  try {
    return SafetensorsFile(path);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kCorruptFile) throw;
    fail_damaged(path, "not a whole checkpoint");
  }
}

// The first files had no checksum. One whose name was damaged must not pass for one of those, so
// that a name which no checkpoint has is refused.
void check_names(const SafetensorsFile& file) {
  const auto& has = file.metadata();
  const auto format = has.find("format");
  const bool ours = format != has.end() && format->second == kFormat;
  for (const char* key : {"step", "run", "progress"}) {
    if (has.contains(key)) continue;
    if (ours) fail_damaged(file.path(), cat("has no ", key));
    fail(ErrorCode::kCorruptFile, file.path().string(), ": has no ", key,
         "; it was not written by wick train");
  }
  constexpr std::string_view kNames[] = {"format", "step", "run", "progress", "crc32c"};
  for (const auto& [key, value] : has)
    if (std::find(std::begin(kNames), std::end(kNames), key) == std::end(kNames))
      fail_damaged(file.path(), cat("its header has \"", key, "\", which no checkpoint has"));
}

Json parse_text(const SafetensorsFile& file, const char* key) {
  try {
    return parse_json(file.metadata().find(key)->second, file.path().string());
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kCorruptFile) throw;
    fail_damaged(file.path(), cat("its ", key, " is no JSON"));
  }
}

}  // namespace

std::optional<Json> load_checkpoint_run(const std::filesystem::path& folder) {
  std::filesystem::path path = checkpoint_path(folder);
  if (!path_exists(path)) return std::nullopt;
  const SafetensorsFile file = open_checkpoint(path);
  check_names(file);
  return parse_text(file, "run");
}

std::optional<Checkpoint> load_checkpoint(const std::filesystem::path& folder) {
  std::filesystem::path path = checkpoint_path(folder);
  if (!path_exists(path)) return std::nullopt;
  const SafetensorsFile file = open_checkpoint(path);
  check_names(file);
  auto text = [&](const char* key) -> const std::string& {
    return file.metadata().find(key)->second;
  };
  const std::string &step = text("step"), &run = text("run"), &progress = text("progress");
  Checkpoint c;
  std::vector<Tensor> tensors;
  for (const TensorInfo& info : file.tensors()) {
    if (!info.dtype || (*info.dtype != DType::kF32 && *info.dtype != DType::kU8))
      fail(ErrorCode::kCorruptFile, path.string(), ": ", info.name, " is of type ", info.type_name,
           ", wanted F32 or U8");
    tensors.push_back({info.name, *info.dtype, file.bytes(info)});
  }
  if (auto crc = file.metadata().find("crc32c"); crc != file.metadata().end())
    if (crc->second != hex(checksum(step, run, progress, tensors)))
      fail_damaged(path, "its checksum is wrong");
  c.run = parse_text(file, "run");
  c.progress = parse_text(file, "progress");
  const char* end = step.data() + step.size();
  if (const auto read = std::from_chars(step.data(), end, c.step);
      read.ec != std::errc() || read.ptr != end || c.step < 0)
    fail_damaged(path, cat("step is \"", step, "\", wanted a number of updates"));
  auto floats = [&](const Tensor& t) {
    if (t.dtype != DType::kF32)
      fail(ErrorCode::kCorruptFile, path.string(), ": ", t.name, " is not of type F32");
    std::vector<float> values(t.bytes.size() / sizeof(float));
    std::memcpy(values.data(), t.bytes.data(), values.size() * sizeof(float));
    return values;
  };
  for (const Tensor& t : tensors) {
    if (t.name == "params") {
      c.params = floats(t);
    } else if (t.name == "best") {
      c.best = floats(t);
    } else {
      // Older files have m and v by themselves.
      const bool prefixed = t.name.rfind(kStatePrefix, 0) == 0;
      c.states.push_back({prefixed ? t.name.substr(std::strlen(kStatePrefix)) : t.name,
                          t.dtype,
                          {t.bytes.begin(), t.bytes.end()}});
    }
  }
  if (c.params.empty()) fail(ErrorCode::kCorruptFile, path.string(), ": has no tensor params");
  return c;
}

std::vector<std::string> differences(const Json& was, const Json& now) {
  std::vector<std::string> found;
  // What has the same numbers is the same under another name, or in another place.
  auto only_moved = [&](const std::string& key) {
    for (const auto& [name, numbers] : {std::pair("model", "weights"),
                                        {"data", "data_fingerprint"},
                                        {"teacher", "teacher_weights"},
                                        {"teacher_adapter", "teacher_adapter_weights"},
                                        {"reference", "reference_weights"}})
      if (key == name)
        return was.contains(numbers) && now.contains(numbers) && was[numbers] == now[numbers];
    return false;
  };
  for (const auto& [key, value] : now.items()) {
    if (key == kOrder || !was.contains(key) || was[key] == value || only_moved(key)) continue;
    // What was written is not always what there is: of a path that is not UTF-8, or not-a-number.
    const std::string before = dump_json(was[key]), after = dump_json(value);
    if (before != after) found.push_back(cat(key, ": was ", before, ", is now ", after));
  }
  for (const auto& [key, value] : was.items())
    if (key != kOrder && !now.contains(key))
      found.push_back(cat(key, ": was ", dump_json(value), ", is now absent"));
  return found;
}

std::vector<std::string> order_differences(const Json& was, const Json& now) {
  if (!now.contains(kOrder)) return {};
  if (!was.contains(kOrder)) return {"it does not say how its updates were computed"};
  const Json &a = was[kOrder], &b = now[kOrder];
  std::vector<std::string> found;
  auto compare = [&](const char* key, const char* what) {
    if (!a.contains(key) || !b.contains(key) || a[key] != b[key]) found.push_back(what);
  };
  compare("numerics", "the arithmetic of kernels or random numbers is another");
  compare("plan", "an update has other steps");
  compare("kernels", "other kernels compute them");
  compare("packs", "rows are laid into other packs");
  return found;
}

bool trains_the_same(const Json& was, const Json& now) {
  auto trained = [](const Json& run) -> const Json* {
    const Json* order = find_member(run, kOrder);
    return order ? find_member(*order, "trained") : nullptr;
  };
  const Json *before = trained(was), *after = trained(now);
  return !before || !after || *before == *after;
}

}  // namespace wick
