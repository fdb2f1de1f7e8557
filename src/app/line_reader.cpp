// SPDX-License-Identifier: Apache-2.0
#include "app/line_reader.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "app/format.h"
#include "app/signals.h"
#include "app/terminal.h"
#include "text/unicode.h"

namespace wick {

namespace {

// Keys arrive one by one and Ctrl-C as a character, for as long as one of these lives. Signals from
// elsewhere are an end of the input meanwhile, so that they find the terminal as it was before.
class RawMode {
 public:
  RawMode() {
    tcgetattr(STDIN_FILENO, &before_);
    termios raw = before_;
    raw.c_iflag &= ~static_cast<tcflag_t>(ICRNL | IXON);
    raw.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON | ISIG | IEXTEN);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    std::fputs("\x1b[?2004h", stdout);  // pasted text between markers
  }
  ~RawMode() {
    std::fputs("\x1b[?2004l", stdout);
    std::fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  RawMode(const RawMode&) = delete;
  RawMode& operator=(const RawMode&) = delete;

  bool ended() const { return stop_.asked(); }

 private:
  StopSignal stop_;
  termios before_{};
};

// What is typed, byte by byte.
class Keys {
 public:
  explicit Keys(const RawMode& mode) : mode_(mode) {}

  // -1 at the end.
  int next() {
    if (held_ >= 0) return std::exchange(held_, -1);
    unsigned char byte = 0;
    pollfd keyboard{STDIN_FILENO, POLLIN, 0};
    while (!mode_.ended()) {
      // A signal that comes just before the wait, or to another thread, does not end it.
      constexpr int kPatienceMs = 100;
      const int ready = ::poll(&keyboard, 1, kPatienceMs);
      if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
      ssize_t got = ::read(STDIN_FILENO, &byte, 1);
      if (got == 1) return byte;
      if (got < 0 && errno == EINTR) continue;
      return -1;
    }
    return -1;
  }

  // One character of UTF-8, given its first byte; U+FFFD for bytes that are none, as terminals of
  // other encodings send them.
  std::string character(int first) {
    std::string text(1, static_cast<char>(first));
    int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : first >= 0xC0 ? 1 : 0;
    for (int i = 0; i < more; ++i) {
      int byte = next();
      if (byte < 0) break;
      if ((byte & 0xC0) != 0x80) {
        held_ = byte;
        break;
      }
      text += static_cast<char>(byte);
    }
    return unicode::is_valid(text) ? text : std::string(unicode::kReplacement);
  }

  // The rest of an escape sequence: "[A", "[1~", "OH", …
  std::string escape_sequence() {
    std::string text;
    int byte = next();
    if (byte < 0) return text;
    text += static_cast<char>(byte);
    if (byte != '[' && byte != 'O') return text;
    while (text.size() < 16) {
      byte = next();
      if (byte < 0) break;
      text += static_cast<char>(byte);
      if (byte >= 0x40 && byte <= 0x7E) break;
    }
    return text;
  }

 private:
  const RawMode& mode_;
  int held_ = -1;  // read, but not of the character before
};

std::vector<std::string> characters_of(const std::string& text) {
  std::vector<std::string> characters;
  for (char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80 || characters.empty())
      characters.emplace_back();
    characters.back() += c;
  }
  return characters;
}

struct Line {
  std::vector<std::string> characters;
  size_t cursor = 0;

  std::string text() const {
    std::string out;
    for (const auto& c : characters) out += c;
    return out;
  }
  void set(const std::string& text) {
    characters = characters_of(text);
    cursor = characters.size();
  }
  void insert(const std::string& c) {
    characters.insert(characters.begin() + static_cast<int64_t>(cursor++), c);
  }
  void erase(size_t from, size_t to) {
    characters.erase(characters.begin() + static_cast<int64_t>(from),
                     characters.begin() + static_cast<int64_t>(to));
    cursor = from;
  }
  // The start of the word before the cursor.
  size_t word_before() const {
    size_t at = cursor;
    while (at > 0 && characters[at - 1] == " ") --at;
    while (at > 0 && characters[at - 1] != " ") --at;
    return at;
  }

  std::string shown(size_t i) const {
    return characters[i] == "\n" ? "↵" : characters[i] == "\t" ? "→" : visible(characters[i]);
  }

  // The whole line, on as many rows as it takes: what was said stays on the screen.
  void show_all(const std::string& prompt) const {
    std::string out = "\r\x1b[K" + prompt;
    for (size_t i = 0; i < characters.size(); ++i) out += shown(i);
    std::fputs(out.c_str(), stdout);
  }

  // Shows as much of the line around the cursor as one row has room for.
  void draw(const std::string& prompt) const {
    const size_t room =
        static_cast<size_t>(std::max(terminal_columns() - 1, 20)) - columns_of(prompt);
    size_t from = cursor, before = 0;
    for (; from > 0; --from) {
      const size_t columns = columns_of(shown(from - 1));
      if (before + columns >= room) break;
      before += columns;
    }
    std::string part;
    for (size_t i = from, used = 0; i < characters.size(); ++i) {
      used += columns_of(shown(i));
      if (used > room) break;
      part += shown(i);
    }
    std::string out = "\r" + prompt + part + "\x1b[K\r";
    const size_t column = columns_of(prompt) + before;
    if (column > 0) out += "\x1b[" + std::to_string(column) + "C";
    std::fputs(out.c_str(), stdout);
    std::fflush(stdout);
  }
};

constexpr int control(char letter) { return letter & 0x1F; }

}  // namespace

LineReader::LineReader() : terminal_(is_terminal(stdin) && is_terminal(stdout)) {}

LineReader::Result LineReader::read(const std::string& prompt, std::string& line) {
  line.clear();
  if (terminal_) {
    Result result = edit(prompt, line);
    if (result == Result::kLine && !line.empty() && (history_.empty() || history_.back() != line))
      history_.push_back(line);
    return result;
  }
  while (true) {
    size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      break;
    }
    if (ended_) {
      if (pending_.empty()) return Result::kEnd;
      line.swap(pending_);
      break;
    }
    char block[4096];
    ssize_t got = ::read(STDIN_FILENO, block, sizeof block);
    if (got < 0 && errno == EINTR) return Result::kInterrupted;
    if (got > 0)
      pending_.append(block, static_cast<size_t>(got));
    else
      ended_ = true;
  }
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return Result::kLine;
}

LineReader::Result LineReader::edit(const std::string& prompt, std::string& text) {
  RawMode raw;
  Keys keys(raw);
  Line line;
  size_t place = history_.size();  // in the history; its size is the new line
  std::string fresh;
  auto go_to = [&](size_t to) {
    if (place == history_.size()) fresh = line.text();
    place = to;
    line.set(place == history_.size() ? fresh : history_[place]);
  };
  bool pasting = false;
  auto end = [&](Result result) {
    std::fputs("\r\n", stdout);
    text = line.text();
    return result;
  };
  while (true) {
    if (!pasting) line.draw(prompt);
    int byte = keys.next();
    if (byte < 0) return end(Result::kEnd);
    if (byte == 0x1B) {
      std::string key = keys.escape_sequence();
      if (key == "[200~") pasting = true;
      if (key == "[201~") pasting = false;
      if (key == "[D" && line.cursor > 0) --line.cursor;
      if (key == "[C" && line.cursor < line.characters.size()) ++line.cursor;
      if (key == "[A" && place > 0) go_to(place - 1);
      if (key == "[B" && place < history_.size()) go_to(place + 1);
      if (key == "[H" || key == "OH" || key == "[1~") line.cursor = 0;
      if (key == "[F" || key == "OF" || key == "[4~") line.cursor = line.characters.size();
      if (key == "[3~" && line.cursor < line.characters.size())
        line.erase(line.cursor, line.cursor + 1);
    } else if (pasting) {
      line.insert(byte == '\r' ? "\n" : keys.character(byte));
    } else if (byte == '\r' || byte == '\n') {
      line.show_all(prompt);
      return end(Result::kLine);
    } else if (byte == control('C')) {
      return end(Result::kInterrupted);
    } else if (byte == control('D')) {
      if (line.characters.empty()) return end(Result::kEnd);
      if (line.cursor < line.characters.size()) line.erase(line.cursor, line.cursor + 1);
    } else if (byte == 0x7F || byte == control('H')) {
      if (line.cursor > 0) line.erase(line.cursor - 1, line.cursor);
    } else if (byte == control('A')) {
      line.cursor = 0;
    } else if (byte == control('E')) {
      line.cursor = line.characters.size();
    } else if (byte == control('U')) {
      line.erase(0, line.cursor);
    } else if (byte == control('K')) {
      line.characters.resize(line.cursor);
    } else if (byte == control('W')) {
      line.erase(line.word_before(), line.cursor);
    } else if (byte == control('L')) {
      std::fputs("\x1b[H\x1b[2J", stdout);
    } else if (byte >= 0x20 || byte == '\t') {
      line.insert(keys.character(byte));
    }
  }
}

}  // namespace wick
