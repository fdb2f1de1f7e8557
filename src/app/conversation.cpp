// SPDX-License-Identifier: Apache-2.0
#include "app/conversation.h"

#include <algorithm>

#include "app/format.h"
#include "base/check.h"

namespace wick {

Conversation::Conversation(int64_t context, int64_t room, Count count)
    : context_(context),
      room_(std::max<int64_t>(1, std::min(room, context / 4))),
      count_(std::move(count)) {}

void Conversation::set_system(std::string text) {
  if (has_system_) messages_.erase(messages_.begin());
  has_system_ = !text.empty();
  if (has_system_) messages_.insert(messages_.begin(), {"system", std::move(text)});
}

void Conversation::reset() { messages_.resize(first_turn()); }

int64_t Conversation::turns() const {
  return std::count_if(messages_.begin(), messages_.end(),
                       [](const Message& m) { return m.role == "user"; });
}

Conversation::Fit Conversation::ask(const std::string& text) {
  std::vector<Message> trial = messages_;
  trial.push_back({"user", text});
  Fit fit;
  fit.tokens = count_(trial);
  size_t first = first_turn();
  while (fit.tokens + room_ > context_ && first + 1 < trial.size()) {
    size_t end = first + 1;
    while (end + 1 < trial.size() && trial[end].role != "user") ++end;
    trial.erase(trial.begin() + static_cast<int64_t>(first),
                trial.begin() + static_cast<int64_t>(end));
    ++fit.forgotten;
    fit.tokens = count_(trial);
  }
  if (fit.tokens >= context_)
    fail(ErrorCode::kInvalidArgument, "this message takes ", format_count(fit.tokens), " tokens",
         has_system_ ? " with the system message" : "", ", and the model reads ",
         format_count(context_), " with its answer; shorten it");
  fit.room = context_ - fit.tokens;
  fit.nearly_full = 5 * (fit.tokens + room_) > 4 * context_;
  messages_ = std::move(trial);
  return fit;
}

void Conversation::answer(const std::string& text) { messages_.push_back({"assistant", text}); }

void Conversation::take_back() {
  if (!messages_.empty() && messages_.back().role == "user") messages_.pop_back();
}

}  // namespace wick
