// SPDX-License-Identifier: Apache-2.0
// What people see: lines that fit the terminal, and signs that the locale can show.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cli/cli.h"

namespace wick::test {
namespace {

// The built binary on a terminal of so many columns; all that it writes there.
std::string on_terminal(int columns, const std::vector<std::string>& arguments) {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, &size);
  if (pid == 0) {
    setenv("TERM", "xterm", 1);
    std::vector<char*> words{const_cast<char*>("wick")};
    for (const auto& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    execv(WICK_BINARY, words.data());
    _exit(127);
  }
  std::string text;
  char block[4096];
  for (ssize_t n; (n = read(terminal, block, sizeof block)) > 0;)
    text.append(block, static_cast<size_t>(n));
  close(terminal);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
  return text;
}

size_t columns(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

class Terminal : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(folder_.path("model"));
    write_tiny_data(folder_.path("data"));
  }
  std::vector<std::string> train() const {
    return {"train",
            "--model",
            folder_.path("model"),
            "--data",
            folder_.path("data"),
            "--adapter-path",
            folder_.path("out"),
            "--threads",
            "1",
            "--device",
            "cpu",
            "--epochs",
            "4"};
  }
  TempFolder folder_;
};

TEST_F(Terminal, TheLiveLineFitsAndSaysTheTimeLeft) {
  for (int width : {40, 60, 80, 200}) {
    const std::string text = on_terminal(width, train());
    size_t lines = 0;
    for (size_t at = 0; (at = text.find("\rstep ", at)) != std::string::npos; ++lines) {
      const std::string line = text.substr(at + 1, text.find("\x1b[K", at) - at - 1);
      EXPECT_LT(columns(line), static_cast<size_t>(width)) << line;
      EXPECT_TRUE(line.ends_with(" left")) << width << ": " << line;
      if (width == 200) {
        EXPECT_NE(line.find(" tokens/s"), std::string::npos) << line;
      }
      at += line.size();
    }
    EXPECT_GT(lines, 0u) << text;
  }
}

TEST_F(Terminal, HelpFitsButForItsCommands) {
  for (const char* verb : {"convert", "devices", "eval", "plan"})
    for (int width : {60, 80}) {
      const std::string text = on_terminal(width, {verb, "--help"});
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find("\r\n", at), text.size());
        const std::string line = text.substr(at, end - at);
        if (!line.starts_with("  wick ") && !line.starts_with("  # ")) {
          EXPECT_LE(columns(line), static_cast<size_t>(width)) << line;
        }
        at = end + 2;
      }
    }
}

TEST_F(Terminal, SignsAreAsciiWhereTheLocaleIsNotUtf8) {
  const std::vector<std::string> data = {
      "data", "--model", folder_.path("model"), "--data", folder_.path("data"), "--no-estimate"};
  const std::vector<std::string> eval = {
      "eval", "--model", folder_.path("model"), "--data", folder_.path("data"), "--no-exact-match"};
  auto ascii = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
  };
  for (const char* locale : {"C", "en_US.ISO-8859-1"}) {
    ASSERT_EQ(setenv("LC_ALL", locale, 1), 0);
    EXPECT_TRUE(ascii(wick(data).out)) << wick(data).out;
    EXPECT_TRUE(ascii(wick(eval).out)) << wick(eval).out;
  }
  ASSERT_EQ(setenv("LC_ALL", "en_US.utf-8", 1), 0);
  EXPECT_FALSE(ascii(wick(data).out));
  EXPECT_FALSE(ascii(wick(eval).out));
  unsetenv("LC_ALL");
}

}  // namespace
}  // namespace wick::test
