// SPDX-License-Identifier: Apache-2.0
// A conversation that always fits the model's context, and never shrinks unnoticed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "wick/model.h"

namespace wick {

class Conversation {
 public:
  using Count = std::function<int64_t(const std::vector<Message>& messages)>;

  // `count` gives the tokens of a rendered conversation. An answer is promised `room` tokens, or a
  // quarter of the context if that is less.
  Conversation(int64_t context, int64_t room, Count count);

  void set_system(std::string text);
  void reset();  // keeps the system message

  struct Fit {
    int64_t tokens = 0;        // of what the model will read
    int64_t room = 0;          // left for the answer
    int64_t forgotten = 0;     // turns (a message and its answer) that were dropped to fit
    bool nearly_full = false;  // the next turn or the one after will not fit
  };
  // Adds a user message and drops the oldest turns until it fits. Throws: kInvalidArgument, and
  // leaves everything as it was, where the message alone is too long.
  Fit ask(const std::string& text);
  void answer(const std::string& text);
  // Takes back the last message that has no answer.
  void take_back();

  const std::vector<Message>& messages() const { return messages_; }
  int64_t turns() const;

 private:
  size_t first_turn() const { return has_system_ ? 1 : 0; }
  int64_t context_, room_;
  Count count_;
  std::vector<Message> messages_;
  bool has_system_ = false;
};

}  // namespace wick
