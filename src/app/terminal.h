// SPDX-License-Identifier: Apache-2.0
// Where text goes: results and JSON to standard output, people's text beside JSON to standard
// error, and one line that is rewritten on a terminal.
#pragma once

#include <cstdio>
#include <string>

#include "io/json.h"

namespace wick {

bool is_terminal(std::FILE* stream);
int terminal_columns();  // 80 where the terminal does not say
bool uses_utf8();        // by the locale's name
// A sign of ours as this locale can show it.
const char* sign(const char* utf8, const char* ascii);
// `mode` is auto, always or never; auto is a terminal without NO_COLOR.
bool uses_color(const std::string& mode, std::FILE* stream);

class Output {
 public:
  // `json`: standard output carries JSON lines only, people's text goes to standard error.
  // `quiet`: say() and the live line show nothing.
  Output(bool json, bool quiet);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  bool json() const { return json_; }
  bool quiet() const { return quiet_; }
  std::FILE* people() const { return people_; }
  bool live() const { return live_; }  // whether live() shows anything

  // One JSON object as a line of standard output; nothing without --json.
  void event(const Json& object);
  // A line for people, on top of the live line.
  void say(const std::string& line = {});
  // The same, shown with --quiet too: what the verb was asked for.
  void result(const std::string& line = {});
  // Rewrites the live line, cut to live_columns(); nothing where there is no terminal.
  void live(const std::string& line);
  static size_t live_columns();
  void end_live();

 private:
  void print(const std::string& line);
  bool json_, quiet_, live_, showing_ = false;
  std::FILE* people_;
};

// The text of one JSON line. Bytes that are not UTF-8 become U+FFFD; not-a-number becomes null.
std::string json_line(const Json& object);

// A part of a model's answer, whole characters, to standard output at once: on a terminal with its
// control characters visible, elsewhere as it is.
void write_answer(const std::string& text);

// All of standard input. Throws: Error kIo; kInvalidArgument above 64 MiB.
std::string read_standard_input();

}  // namespace wick
