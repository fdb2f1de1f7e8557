// SPDX-License-Identifier: Apache-2.0
#include "app/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "app/format.h"
#include "base/check.h"

namespace wick {

bool is_terminal(std::FILE* stream) {
  const char* kind = std::getenv("TERM");
  return isatty(fileno(stream)) && !(kind && std::string(kind) == "dumb");
}

int terminal_columns() {
  winsize size{};
  for (int fd : {STDERR_FILENO, STDOUT_FILENO})
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool uses_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (!value || !*value) continue;
    std::string locale = value;
    for (char& c : locale) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  // Containers often name no locale; their terminals are those of the machine around them.
  return true;
}

const char* sign(const char* utf8, const char* ascii) { return uses_utf8() ? utf8 : ascii; }

bool uses_color(const std::string& mode, std::FILE* stream) {
  if (mode != "auto") return mode == "always";
  const char* refused = std::getenv("NO_COLOR");
  return is_terminal(stream) && !(refused && *refused);
}

Output::Output(bool json, bool quiet)
    : json_(json), quiet_(quiet), live_(false), people_(json ? stderr : stdout) {
  live_ = !quiet && is_terminal(people_);
}

Output::~Output() { end_live(); }

void Output::event(const Json& object) {
  if (!json_) return;
  std::string line = json_line(object) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

void Output::print(const std::string& line) {
  if (showing_) std::fputs("\r\x1b[K", people_);
  showing_ = false;
  std::fwrite(line.data(), 1, line.size(), people_);
  std::fputc('\n', people_);
  std::fflush(people_);
}

void Output::say(const std::string& line) {
  if (!quiet_) print(line);
}

void Output::result(const std::string& line) { print(line); }

// One column stays free: some terminals wrap when the last one is written.
size_t Output::live_columns() { return static_cast<size_t>(std::max(terminal_columns() - 1, 20)); }

void Output::live(const std::string& line) {
  if (!live_) return;
  std::fprintf(people_, "\r%s\x1b[K", std::string(fitting(line, live_columns())).c_str());
  std::fflush(people_);
  showing_ = true;
}

void Output::end_live() {
  if (!showing_) return;
  std::fputs("\r\x1b[K", people_);
  std::fflush(people_);
  showing_ = false;
}

std::string json_line(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void write_answer(const std::string& text) {
  const std::string shown = is_terminal(stdout) ? visible(text, true) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

std::string read_standard_input() {
  constexpr size_t kLimit = size_t{64} << 20;
  std::string text;
  char block[1 << 16];
  while (true) {
    ssize_t got = ::read(STDIN_FILENO, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::kIo, "standard input: ", std::strerror(errno));
    if (got == 0) return text;
    if (text.size() + static_cast<size_t>(got) > kLimit)
      fail(ErrorCode::kInvalidArgument, "standard input is longer than 64 MiB");
    text.append(block, static_cast<size_t>(got));
  }
}

}  // namespace wick
