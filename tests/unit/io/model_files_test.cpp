// SPDX-License-Identifier: Apache-2.0
#include "io/model_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <optional>

#include "base/check.h"
#include "unit/io/temporary_folder.h"

namespace wick {
namespace {

class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

std::string open_error(const std::filesystem::path& path) {
  return message_of([&] { open_model_folder(path.string()); });
}

TEST(ModelFolder, ReadsItsSettings) {
  TemporaryFolder folder("model");
  folder.write("config.json", R"({"model_type": "llama"})");
  ModelFolder model = open_model_folder(folder.path().string());
  EXPECT_EQ(get_string(model.config, "model_type", "c"), "llama");
  EXPECT_TRUE(model.generation_config.is_null());
  folder.write("generation_config.json", R"({"eos_token_id": [1, 2]})");
  model = open_model_folder(folder.path().string());
  EXPECT_EQ(model.generation_config["eos_token_id"].size(), 2u);
}

TEST(ModelFolder, SaysWhatAFolderIsInstead) {
  TemporaryFolder folder("model_bad");
  EXPECT_PRED2(contains, open_error(""), "empty");
  EXPECT_PRED2(contains, open_error(folder.path()), "no config.json");
  EXPECT_PRED2(contains, open_error(folder / "none/at/all"), "no such folder");
  EXPECT_PRED2(contains, open_error(folder.write("gguf/m.gguf", "GGUF")), "not read yet");
  EXPECT_PRED2(contains, open_error(folder / "gguf"), "not read yet");
  folder.write("adapter/adapter_config.json", "{}");
  EXPECT_PRED2(contains, open_error(folder / "adapter"), "pass it as --adapter-path");
  folder.write("pickled/config.json", "{}");
  auto weights = folder.write("pickled/pytorch_model.bin", "x");
  EXPECT_PRED2(contains, open_error(folder / "pickled"), "convert to safetensors");
  EXPECT_PRED2(contains, open_error(weights), "did you mean");
  folder.write("broken/config.json", "{");
  EXPECT_PRED2(contains, open_error(folder / "broken"), "config.json:1:2: not valid JSON");
  folder.write("list/config.json", "[]");
  EXPECT_PRED2(contains, open_error(folder / "list"), "expected an object");
}

TEST(ModelFolder, DoesNotWaitForAPipe) {
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    TemporaryFolder folder("model_pipe");
    if (name != std::string("config.json")) folder.write("config.json", "{}");
    ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
    EXPECT_PRED2(contains, open_error(folder.path()), cat(name, ": is a named pipe"));
  }
}

// A hub snapshot whose blobs did not come along: without the file that is meant, settings or the
// chat template would be lost and nothing would tell.
TEST(ModelFolder, NamesLinksToNothing) {
  for (const char* name : {"config.json", "generation_config.json", "tokenizer_config.json",
                           "special_tokens_map.json", "chat_template.jinja"}) {
    TemporaryFolder folder("model_link");
    if (name != std::string("config.json")) folder.write("config.json", "{}");
    std::filesystem::create_symlink("../blobs/gone", folder / name);
    EXPECT_PRED2(contains, open_error(folder.path()),
                 cat(name, ": a link to ../blobs/gone, which is not there"));
  }
  TemporaryFolder folder("model_other_link");
  folder.write("config.json", "{}");
  std::filesystem::create_symlink("../blobs/gone", folder / "notes.json");
  EXPECT_EQ(open_error(folder.path()), "");
}

TEST(ModelFolder, CopiesNoPipe) {
  TemporaryFolder from("pipes_from"), to("pipes_to");
  from.write("additional_chat_templates/a.jinja", "a");
  from.write("a_licence", "words");
  std::filesystem::create_symlink("a_licence", from / "LICENSE");
  for (const char* name : {"NOTICE", "merges.txt", "additional_chat_templates/b.jinja"})
    ASSERT_EQ(::mkfifo((from / name).c_str(), 0600), 0);
  copy_model_files(from.path(), to.path());
  EXPECT_EQ(files_of_model(to.path()),
            (std::vector<std::filesystem::path>{"LICENSE", "additional_chat_templates/a.jinja"}));
  EXPECT_EQ(read_file(to / "LICENSE"), "words");
}

TEST(ModelFolder, FindsHubNamesInTheCache) {
  TemporaryFolder cache("hub");
  Environment variable("HF_HUB_CACHE", cache.path().string());
  const std::string base = "models--org--small-1.0/";
  EXPECT_PRED2(contains, open_error("org/small-1.0"), "download it first");
  cache.write(base + "snapshots/abc123/config.json", R"({"model_type": "a"})");
  EXPECT_EQ(open_model_folder("org/small-1.0").folder, cache / (base + "snapshots/abc123"));
  cache.write(base + "snapshots/def456/config.json", R"({"model_type": "b"})");
  EXPECT_PRED2(contains, open_error("org/small-1.0"), "download it first");
  cache.write(base + "refs/main", "def456\n");
  EXPECT_EQ(open_model_folder("org/small-1.0").folder, cache / (base + "snapshots/def456"));
  cache.write(base + "refs/main", "../../../..");
  EXPECT_PRED2(contains, open_error("org/small-1.0"), "download it first");
  EXPECT_TRUE(find_in_hub_cache("../x").empty());
  EXPECT_TRUE(find_in_hub_cache("a/b/c").empty());
}

TEST(ModelFolder, FindsTheCacheOfAHome) {
  TemporaryFolder home("home");
  Environment no_cache("HF_HUB_CACHE", ""), no_other("HUGGINGFACE_HUB_CACHE", "");
  Environment user("HOME", home.path().string()), variable("HF_HOME", "~/hf");
  const std::string base = "hf/hub/models--org--small/";
  home.write(base + "snapshots/abc123/config.json", "{}");
  EXPECT_EQ(open_model_folder("org/small").folder, home / (base + "snapshots/abc123"));
  EXPECT_PRED2(contains, open_error(home / base), "There is a model in");
  EXPECT_PRED2(contains, open_error(home / base), "snapshots/abc123");
}

TEST(ModelFolder, CopiesAllButTheWeights) {
  TemporaryFolder from("copy_from"), to("copy_to");
  for (const char* name : {"config.json", "tokenizer.json", "chat_template.jinja", "LICENSE",
                           "additional_chat_templates/tool_use.jinja", "model.safetensors",
                           "model.safetensors.index.json", "README.md", "run.py"})
    from.write(name, name);
  copy_model_files(from.path(), to / "new/folder");
  for (const char* name : {"config.json", "tokenizer.json", "chat_template.jinja", "LICENSE",
                           "additional_chat_templates/tool_use.jinja"})
    EXPECT_EQ(read_file(to / "new/folder" / name), name);
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "run.py"})
    EXPECT_FALSE(std::filesystem::exists(to / "new/folder" / name)) << name;
  EXPECT_NO_THROW(copy_model_files(from.path(), from.path()));
  EXPECT_EQ(read_file(from / "config.json"), "config.json");
}

}  // namespace
}  // namespace wick
