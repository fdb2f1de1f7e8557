// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint.h"

#include <cstring>

#include "base/check.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace wick {

std::filesystem::path checkpoint_path(const std::filesystem::path& folder) {
  return folder / "training_state.safetensors";
}

void save_checkpoint(const std::filesystem::path& folder, const Checkpoint& c) {
  make_folder(folder);
  SafetensorsWriter writer(checkpoint_path(folder), {{"format", "wick-training-state"},
                                                     {"step", std::to_string(c.step)},
                                                     {"run", dump_json(c.run)},
                                                     {"progress", dump_json(c.progress)}});
  const std::pair<const char*, const std::vector<float>*> tensors[] = {
      {"params", &c.params}, {"m", &c.m}, {"v", &c.v}};
  for (const auto& [name, data] : tensors)
    writer.declare(name, DType::kF32, {static_cast<int64_t>(data->size())});
  for (const auto& [name, data] : tensors) writer.write(name, std::as_bytes(std::span(*data)));
  writer.commit();
}

namespace {

const std::string& metadata(const SafetensorsFile& file, const char* key) {
  auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    fail(ErrorCode::kCorruptFile, file.path().string(), ": has no ", key,
         "; it was not written by wick train");
  return found->second;
}

}  // namespace

std::optional<Json> load_checkpoint_run(const std::filesystem::path& folder) {
  std::filesystem::path path = checkpoint_path(folder);
  if (!std::filesystem::exists(path)) return std::nullopt;
  return parse_json(metadata(SafetensorsFile(path), "run"), path.string());
}

std::optional<Checkpoint> load_checkpoint(const std::filesystem::path& folder) {
  std::filesystem::path path = checkpoint_path(folder);
  if (!std::filesystem::exists(path)) return std::nullopt;
  SafetensorsFile file(path);
  auto text = [&](const char* key) -> const std::string& { return metadata(file, key); };
  Checkpoint c;
  c.run = parse_json(text("run"), path.string());
  c.progress = parse_json(text("progress"), path.string());
  try {
    c.step = std::stoll(text("step"));
  } catch (const std::exception&) {
    fail(ErrorCode::kCorruptFile, path.string(), ": step is \"", text("step"), "\"");
  }
  const std::pair<const char*, std::vector<float>*> tensors[] = {
      {"params", &c.params}, {"m", &c.m}, {"v", &c.v}};
  for (const auto& [name, data] : tensors) {
    const TensorInfo* info = file.find(name);
    if (!info || info->dtype != DType::kF32)
      fail(ErrorCode::kCorruptFile, path.string(), ": has no f32 tensor ", name);
    data->resize(static_cast<size_t>(info->shape.elements()));
    std::memcpy(data->data(), file.bytes(*info).data(), data->size() * sizeof(float));
  }
  return c;
}

std::string first_difference(const Json& was, const Json& now) {
  for (const auto& [key, value] : now.items()) {
    const Json* old = was.contains(key) ? &was[key] : nullptr;
    if (!old || *old != value)
      return cat(key, ": was ", old ? dump_json(*old) : "absent", ", is now ", dump_json(value));
  }
  for (const auto& [key, value] : was.items())
    if (!now.contains(key)) return cat(key, ": was ", dump_json(value), ", is now absent");
  return {};
}

}  // namespace wick
