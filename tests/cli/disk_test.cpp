// SPDX-License-Identifier: Apache-2.0
// Disks that are too small: foreseen where it can be, and where it happens nothing is lost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>

#include "cli/cli.h"

namespace wick::test {
namespace {

void write_to(const char* path, const std::string& text) {
  if (const int fd = ::open(path, O_WRONLY | O_CLOEXEC); fd >= 0) {
    [[maybe_unused]] const ssize_t n = ::write(fd, text.data(), text.size());
    ::close(fd);
  }
}

// This process and what it starts see mounts of their own from here on; false: not allowed.
bool own_mounts() {
  static const bool allowed = [] {
    const uid_t user = geteuid();
    const gid_t group = getegid();
    if (unshare(user == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    if (user != 0) {
      write_to("/proc/self/setgroups", "deny");
      write_to("/proc/self/uid_map", "0 " + std::to_string(user) + " 1");
      write_to("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
    }
    return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  }();
  return allowed;
}

class Disk : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(folder_.path("model"));
    write_tiny_data(folder_.path("data"), 24);
    std::filesystem::create_directories(folder_.path("disk"));
    if (!own_mounts() || !resize("size=64m", 0))
      GTEST_SKIP() << "no file system may be mounted here";
  }
  void TearDown() override { umount(folder_.path("disk").c_str()); }

  bool resize(const std::string& size, unsigned long how = MS_REMOUNT) const {
    return mount("none", folder_.path("disk").c_str(), "tmpfs", how, size.c_str()) == 0;
  }
  // Leaves so many bytes free.
  void fill(int64_t free) const {
    const auto space = std::filesystem::space(folder_.path("disk"));
    std::ofstream file(folder_.path("disk/ballast"), std::ios::binary);
    file << std::string(static_cast<size_t>(static_cast<int64_t>(space.available) - free), 'x');
  }
  std::vector<std::string> train(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"train",
                                      "--model",
                                      folder_.path("model"),
                                      "--data",
                                      folder_.path("data"),
                                      "--adapter-path",
                                      folder_.path("disk/out"),
                                      "--iters",
                                      "12",
                                      "--save-every",
                                      "4",
                                      "--rank",
                                      "64",
                                      "--date",
                                      "2026-01-02",
                                      "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static void expect_parts(const CliResult& r, const std::vector<std::string>& parts) {
    EXPECT_EQ(r.code, 1) << r.out << r.err;
    for (const std::string& part : parts) EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }
  std::string state() const { return folder_.path("disk/out/training_state.safetensors"); }
  void expect_nothing_half() const {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(folder_.path("disk/out")))
      EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  }

  TempFolder folder_;
};

TEST_F(Disk, WithRoomForOneCheckpointIsForeseen) {
  const Json plan = [&] {
    std::vector<std::string> words = train();
    words[0] = "plan";
    return wick(words).event("forecast");
  }();
  const int64_t kept = plan["disk_bytes"], most = plan["disk_peak_bytes"];
  EXPECT_GT(most, kept);
  EXPECT_GE(kept, 1 << 20);
  fill((kept + most) / 2 + (512 << 10));
  expect_parts(wick(train()), {"the disk has", "free and the run needs",
                               "room for a new file beside", "--save-every 12", "and fits"});
  EXPECT_FALSE(std::filesystem::exists(folder_.path("disk/out")));
  // What it says fits does; and then a run in the same folder replaces those files.
  EXPECT_EQ(wick(train({"--save-every", "12"})).code, 0);
  std::filesystem::remove(folder_.path("disk/ballast"));
  const auto used = std::filesystem::file_size(state()) +
                    std::filesystem::file_size(folder_.path("disk/out/adapter_model.safetensors"));
  EXPECT_NEAR(static_cast<double>(used), static_cast<double>(kept), 64 << 10);
}

// Rows of frozen blocks that are kept in a folder are a file, too.
TEST_F(Disk, WithoutRoomForKeptRowsIsForeseen) {
  const std::vector<std::string> kept = {"--prefix-cache", folder_.path("disk/rows"),
                                         "--num-layers", "1"};
  std::vector<std::string> elsewhere = kept, words = train(kept);
  elsewhere.insert(elsewhere.end(), {"--adapter-path", folder_.path("out")});
  words[0] = "plan";
  const Json plan = wick(words).event("forecast");
  const int64_t rows = plan["prefix_bytes"];
  ASSERT_GT(rows, 16 << 10);
  fill(rows / 2);
  expect_parts(wick(train(elsewhere)), {"--prefix-cache ", "the disk has",
                                        "the rows that are kept need", "--prefix-cache memory"});
  std::filesystem::remove(folder_.path("disk/ballast"));
  fill(plan["disk_peak_bytes"].get<int64_t>() + (512 << 10) + rows / 2);
  expect_parts(wick(train(kept)), {"rows of --prefix-cache of ", "--prefix-cache memory fits"});
  EXPECT_EQ(wick(train({"--prefix-cache", "memory", "--num-layers", "1"})).code, 0);
}

TEST_F(Disk, ThatFillsUpKeepsTheLastCheckpoint) {
  // Long enough that it is still running when its disk is filled.
  const std::vector<std::string> longer = {"--iters", "200", "--save-every", "2", "--no-shuffle"};
  std::vector<std::string> words = train(longer);
  words[6] = folder_.path("disk/whole");
  ASSERT_EQ(wick(words).code, 0);
  const std::string wanted = contents(folder_.path("disk/whole/adapter_model.safetensors"));
  bool filled = false;
  const CliResult full = wick(train(longer), {}, [&](const std::string& out, int) {
    if (filled || out.find("\"saved\"") == std::string::npos) return;
    filled = true;
    fill(64 << 10);
  });
  // Of the checkpoint, or of the result that is written behind it.
  expect_parts(full, {".safetensors.tmp", "No space left", "free some space",
                      "the checkpoint of update ", "is kept: --resume goes on from it"});
  expect_nothing_half();
  ASSERT_TRUE(std::filesystem::exists(state()));
  std::filesystem::remove(folder_.path("disk/ballast"));
  words = train(longer);
  words.push_back("--resume");
  ASSERT_EQ(wick(words).code, 0);
  EXPECT_EQ(contents(folder_.path("disk/out/adapter_model.safetensors")), wanted);
}

// A cleaned copy is whole or not there.
TEST_F(Disk, ThatFillsUpGetsNoHalfOfADataSet) {
  std::string rows;
  for (int i = 0; i < 3000; ++i)
    rows += "{\"prompt\": \"question " + std::to_string(i) + "\", \"completion\": \"yes\"}\n";
  const std::string file = folder_.write("long/train.jsonl", rows), to = folder_.path("disk/clean");
  fill(64 << 10);
  expect_parts(wick({"data", "--model", folder_.path("model"), "--data", file, "--fix", to,
                     "--no-estimate"}),
               {"train.jsonl", "No space left"});
  EXPECT_FALSE(std::filesystem::exists(to));
}

// A run, a merge and a conversion that cannot begin or end leave nothing behind.
TEST_F(Disk, ThatIsFullGetsNoEmptyFolders) {
  ASSERT_EQ(wick(train({"--adapter-path", folder_.path("adapter")})).code, 0);
  fill(32 << 10);
  const std::string to = folder_.path("disk/new/deep");
  const std::string model = folder_.path("model");
  for (const std::vector<std::string>& words :
       {train({"--adapter-path", to}),
        train({"--adapter-path", to, "--sweep", "lr=1e-4,1e-3"}),
        std::vector<std::string>{"merge", "--model", model, "--adapter-path",
                                 folder_.path("adapter"), "--save-path", to},
        {"convert", "--model", model, "--save-path", to, "--save-dtype", "f32"}}) {
    const CliResult r = wick(words);
    EXPECT_EQ(r.code, 1) << words[0] << r.out << r.err;
    EXPECT_FALSE(std::filesystem::exists(folder_.path("disk/new"))) << words[0] << r.err;
  }
}

}  // namespace
}  // namespace wick::test
