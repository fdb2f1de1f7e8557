// SPDX-License-Identifier: Apache-2.0
#include "io/model_files.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/check.h"
#include "base/file.h"
#include "base/path_status.h"

namespace wick {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// A named pipe, a socket or a device: reading one may never end.
bool is_special(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

// As huggingface_hub: where no shell has read the value (a container's file, a service) a ~ may
// stand in it.
fs::path environment_path(const char* name) {
  const char* value = std::getenv(name);
  const std::string_view text = value ? value : "";
  const char* home = std::getenv("HOME");
  if (home && *home && (text == "~" || text.starts_with("~/"))) return cat(home, text.substr(1));
  return text;
}

fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (fs::path cache = environment_path(name); !cache.empty()) return cache;
  if (fs::path home = environment_path("HF_HOME"); !home.empty()) return home / "hub";
  if (fs::path cache = environment_path("XDG_CACHE_HOME"); !cache.empty())
    return cache / "huggingface" / "hub";
  if (fs::path home = environment_path("HOME"); !home.empty())
    return home / ".cache" / "huggingface" / "hub";
  return {};
}

bool is_name_part(std::string_view part) {
  if (part.empty() || part.size() > 96 || part.find("..") != std::string_view::npos) return false;
  return std::all_of(part.begin(), part.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

// "org/name", or "name" for the hub's oldest models.
bool is_hub_name(std::string_view name) {
  size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_name_part(name);
  return is_name_part(name.substr(0, slash)) && is_name_part(name.substr(slash + 1));
}

fs::path resolve(const std::string& given) {
  if (given.empty()) fail(ErrorCode::kInvalidArgument, "the model's folder is an empty name");
  fs::path path(given);
  if (is_folder(path)) return path;
  if (is_there(path)) {
    if (path.extension() == ".gguf")
      fail(ErrorCode::kUnsupported, given,
           ": GGUF files are not read yet; give the model's folder in Hugging Face layout");
    fail(ErrorCode::kInvalidArgument, given,
         ": a file, expected a model's folder (with config.json, tokenizer.json and weights)",
         path.has_parent_path() && is_there(path.parent_path() / "config.json")
             ? cat("; did you mean ", path.parent_path().string(), "?")
             : "");
  }
  const bool hub_name = is_hub_name(given);
  if (hub_name)
    if (fs::path cached = find_in_hub_cache(given); !cached.empty()) return cached;
  // A folder that may not be looked into is named as that.
  static_cast<void>(path_exists(given));
  if (hub_name && !hub_cache().empty())
    fail(ErrorCode::kNotFound, given, ": no such folder, and no such model in the cache ",
         hub_cache().string(), "; download it first (hf download ", given, ")");
  fail(ErrorCode::kNotFound, given,
       ": no such folder; a model is a folder with config.json, tokenizer.json and weights");
}

// A folder within that has a config.json, where there is one such: what was unpacked, or the one
// snapshot of a folder of the hub's cache.
fs::path model_within(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::path& parent : {folder, folder / "snapshots"}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(parent, error))
      if (is_there(entry.path() / "config.json")) found.push_back(entry.path());
  }
  return found.size() == 1 ? found[0] : fs::path();
}

[[noreturn]] void fail_no_config(const fs::path& folder) {
  std::string gguf;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".gguf") gguf = entry.path().filename().string();
  if (!gguf.empty())
    fail(ErrorCode::kUnsupported, folder.string(), ": has ", gguf,
         " and no config.json; GGUF files are not read yet, download the model in Hugging Face"
         " layout");
  const fs::path within = model_within(folder);
  fail(ErrorCode::kNotFound, folder.string(),
       ": no config.json; is this a model's folder, and is the download complete?",
       within.empty() ? "" : cat(" There is a model in ", within.string()));
}

void refuse_pickled_weights(const fs::path& folder) {
  if (is_there(folder / "model.safetensors") || is_there(folder / "model.safetensors.index.json"))
    return;
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (is_there(folder / name))
      fail(ErrorCode::kUnsupported, folder.string(), ": has its weights only as ", name,
           ", a format that can run code when loaded; convert to safetensors first");
}

Json read_object(const fs::path& path) {
  Json value = read_json(path, kMaxConfigBytes);
  if (!value.is_object())
    fail(ErrorCode::kCorruptFile, path.string(), ": is ", json_kind(value), ", expected an object");
  return value;
}

bool is_licence(const std::string& name) {
  return name.starts_with("LICENSE") || name.starts_with("LICENCE") || name.starts_with("NOTICE") ||
         name.starts_with("USE_POLICY");
}

bool is_companion(const std::string& name) {
  static constexpr std::string_view kNames[] = {
      "config.json",         "generation_config.json",
      "tokenizer.json",      "tokenizer_config.json",
      "tokenizer.model",     "special_tokens_map.json",
      "added_tokens.json",   "vocab.json",
      "vocab.txt",           "merges.txt",
      "chat_template.jinja", "chat_template.json",
  };
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         is_licence(name);
}

// mlx-lm reads every model*.safetensors of a folder.
bool is_weights(const std::string& name) {
  return name == "model.safetensors.index.json" ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) fail(ErrorCode::kIo, path.string(), ": cannot remove it: ", error.message());
}

const fs::path kTemplates = "additional_chat_templates";

// Paths within `folder`. Throws: kIo.
std::vector<fs::path> companions(const fs::path& folder) {
  std::vector<fs::path> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (is_companion(entry.path().filename().string()) && !is_folder(entry.path()) &&
        !is_special(entry.path()))
      names.push_back(entry.path().filename());
  if (error) fail(ErrorCode::kIo, folder.string(), ": cannot list this folder: ", error.message());
  for (const auto& entry : fs::directory_iterator(folder / kTemplates, error))
    if (entry.path().extension() == ".jinja" && !is_folder(entry.path()) &&
        !is_special(entry.path()))
      names.push_back(kTemplates / entry.path().filename());
  return names;
}

}  // namespace

fs::path find_in_hub_cache(const std::string& name) {
  fs::path cache = hub_cache();
  if (cache.empty() || !is_hub_name(name)) return {};
  std::string entry = "models--" + name;
  if (size_t slash = entry.find('/'); slash != std::string::npos) entry.replace(slash, 1, "--");
  fs::path folder = cache / entry, snapshots = folder / "snapshots", ref = folder / "refs" / "main";
  if (is_there(ref)) {
    std::string revision = read_file(ref, 256);
    revision.erase(revision.find_last_not_of(" \t\r\n") + 1);
    if (is_name_part(revision) && is_folder(snapshots / revision)) return snapshots / revision;
  }
  // A download by commit leaves no ref; a single snapshot is not ambiguous.
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& snapshot : fs::directory_iterator(snapshots, error))
    if (is_folder(snapshot.path())) found.push_back(snapshot.path());
  return found.size() == 1 ? found[0] : fs::path();
}

void refuse_special_files(const fs::path& folder) {
  static constexpr std::string_view kRead[] = {".json", ".jinja", ".safetensors"};
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    if (std::find(std::begin(kRead), std::end(kRead), path.extension()) == std::end(kRead))
      continue;
    if ((is_companion(path.filename().string()) || path.extension() == ".jinja") &&
        fs::is_symlink(path, error) && !is_there(path))
      fail(ErrorCode::kNotFound, path.string(), ": a link to ",
           fs::read_symlink(path, error).string(),
           ", which is not there; is the download complete?");
    if (!is_special(path)) continue;
    const fs::file_type type = fs::status(path, error).type();
    fail(ErrorCode::kInvalidArgument, path.string(), ": is ",
         type == fs::file_type::fifo     ? "a named pipe"
         : type == fs::file_type::socket ? "a socket"
                                         : "a device",
         ", expected a file; remove it or put the file in its place");
  }
}

ModelFolder open_model_folder(const std::string& folder_or_name) {
  ModelFolder model;
  model.folder = resolve(folder_or_name);
  refuse_special_files(model.folder);
  if (!is_there(model.folder / "config.json")) {
    if (is_there(model.folder / "adapter_config.json"))
      fail(ErrorCode::kInvalidArgument, model.folder.string(),
           ": this is an adapter; pass it as --adapter-path, and its base as --model");
    fail_no_config(model.folder);
  }
  refuse_pickled_weights(model.folder);
  model.config = read_object(model.folder / "config.json");
  if (fs::path path = model.folder / "generation_config.json"; is_there(path))
    model.generation_config = read_object(path);
  return model;
}

void copy_model_files(const fs::path& from, const fs::path& to) {
  make_folder(to);
  std::error_code error;
  if (fs::equivalent(from, to, error)) return;
  if (is_folder(from / kTemplates)) make_folder(to / kTemplates);
  for (const fs::path& name : companions(from)) write_file(to / name, read_file(from / name));
}

std::vector<fs::path> files_of_model(const fs::path& folder) {
  if (!is_folder(folder)) return {};
  std::vector<fs::path> names = companions(folder);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (is_weights(entry.path().filename().string()) && !is_folder(entry.path()))
      names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<fs::path> files_of_adapter(const fs::path& folder) {
  std::vector<fs::path> names;
  for (const char* name :
       {"adapter_config.json", "adapter_model.safetensors", "adapters.safetensors"})
    if (is_there(folder / name)) names.emplace_back(name);
  return names;
}

void remove_model(const fs::path& folder, const fs::path& kept) {
  for (const fs::path& name : files_of_model(folder))
    if (name != kept && !is_licence(name.filename().string())) remove_file(folder / name);
}

void remove_replaced(const fs::path& folder) {
  remove_model(folder, "model.safetensors");
  for (const fs::path& name : files_of_adapter(folder)) remove_file(folder / name);
}

}  // namespace wick
