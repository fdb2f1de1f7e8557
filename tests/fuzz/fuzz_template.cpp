// SPDX-License-Identifier: Apache-2.0
// Any bytes as a chat template over a small conversation: a text or a wick::Error, in bounded time.
// The spans that come with a text lie inside it, in order.
#include <cstdint>
#include <cstdlib>

#include "text/chat_template.h"
#include "wick/error.h"

namespace {

wick::TemplateInput conversation() {
  wick::TemplateInput input;
  input.messages = wick::Json::parse(R"([
    {"role": "system", "content": "s"}, {"role": "user", "content": "Grüße 😀"},
    {"role": "assistant", "content": "", "tool_calls":
      [{"id": "x", "function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]},
    {"role": "tool", "content": "r"}, {"role": "assistant", "content": "<think>t</think>a"}])");
  input.tools = wick::Json::parse(R"([{"function": {"name": "f", "parameters": {}}}])");
  input.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  input.date = "2026-01-02";
  return input;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const wick::TemplateInput kInput = conversation();
  try {
    wick::ChatTemplate chat_template(std::string(reinterpret_cast<const char*>(data), size));
    wick::RenderedChat chat = chat_template.render(kInput);
    if (chat.messages.size() != kInput.messages.size()) std::abort();
    for (const wick::TemplateSpan& s : chat.messages)
      if (s.begin > s.end || s.end > chat.text.size()) std::abort();
    size_t last = 0;
    for (const wick::TemplateSpan& s : chat.generation) {
      if (s.begin < last || s.begin >= s.end || s.end > chat.text.size()) std::abort();
      last = s.end;
    }
    last = 0;
    for (const wick::AssistantSpan& s : wick::assistant_spans(chat_template, kInput)) {
      if (s.begin < last || s.begin > s.end || s.end > chat.text.size()) std::abort();
      last = s.end;
    }
  } catch (const wick::Error&) {
  }
  return 0;
}
