// SPDX-License-Identifier: Apache-2.0
// The spans of assistant turns that a template writes in several pieces, or into one another.
#include <gtest/gtest.h>

#include "text/chat_template.h"

namespace wick {
namespace {

using Turns = std::vector<std::string>;

// What is trained of a conversation, each piece by itself.
Turns trained(const std::string& source, const Json& messages) {
  ChatTemplate t(source);
  TemplateInput input;
  input.messages = messages;
  input.special_tokens = {{"eos_token", "<end>"}};
  const std::string text = t.render(input).text;
  Turns out;
  for (const AssistantSpan& s : assistant_spans(t, input))
    out.push_back(text.substr(s.begin, s.end - s.begin));
  return out;
}

Json say(const char* role, const char* content) {
  return Json{{"role", role}, {"content", content}};
}

Json calls(const char* content, std::initializer_list<const char*> names) {
  Json message = say("assistant", content);
  message["tool_calls"] = Json::array();
  for (const char* name : names) message["tool_calls"].push_back({{"name", name}});
  return message;
}

// What tools answer stands in the turn of the calls, whose words and the next turn follow; only a
// question ends it.
constexpr const char* kAnswersInside =
    "{%- set ns = namespace(last='') -%}{%- for m in messages -%}{%- if m.role != 'tool' -%}"
    "{%- if not (m.role == 'assistant' and ns.last == 'assistant') -%}"
    "{{ '<turn>' + m.role + '|' }}{%- endif -%}"
    "{%- set ns.answered = false -%}{%- for call in m.tool_calls or [] -%}"
    "{{ '<call>' + call.name }}{{ '</call>' }}{%- endfor -%}"
    "{%- if m.tool_calls -%}{%- for k in range(loop.index0 + 1, messages | length) -%}"
    "{%- if messages[k].role == 'tool' and k - loop.index0 < m.tool_calls | length + 2 -%}"
    "{{ '<result>' }}{{ m.tool_calls[k - loop.index0 - 2].name + '=' + messages[k].content }}"
    "{{ '</result>' }}{%- set ns.answered = true -%}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{ m.content }}"
    "{%- if m.tool_calls and not ns.answered -%}{{ '<result>' }}"
    "{%- elif loop.last or messages[loop.index].role == 'user' or m.role == 'user' -%}"
    "{{ '<end>\n' }}{%- endif -%}"
    "{%- set ns.last = m.role -%}{%- endif -%}{%- endfor -%}"
    "{{ '<turn>assistant|' if add_generation_prompt and ns.last != 'assistant' }}";

TEST(Turns, WhatToolsAnswerInsideATurnIsNotTrained) {
  EXPECT_EQ(
      trained(kAnswersInside, Json::array({say("user", "how warm?"), calls("", {"here"}),
                                           say("tool", "20 C"), say("assistant", "It is warm.")})),
      (Turns{"<call>here</call><result>", "It is warm.<end>"}));
  // A name in an answer's header is one of the message, and still not what the model says there.
  EXPECT_EQ(trained(kAnswersInside,
                    Json::array({say("user", "how warm?"), calls("Let me see.", {"here", "there"}),
                                 say("tool", "20 C"), say("tool", "30 C"),
                                 say("assistant", "It is warm.")})),
            (Turns{"<call>here</call><call>there</call>", "Let me see.", "It is warm.<end>"}));
  EXPECT_EQ(trained(kAnswersInside, Json::array({say("user", "how warm?"), calls("", {"here"})})),
            (Turns{"<call>here</call><result>"}));
}

TEST(Turns, AnAnswerThatGoesOnInTheTurnBeforeItBeginsWithItsWords) {
  EXPECT_EQ(trained(kAnswersInside, Json::array({say("user", "hi"), say("assistant", "One."),
                                                 say("assistant", " Two.")})),
            (Turns{"One.", " Two.<end>"}));
}

TEST(Turns, ALastTurnBehindTheLoopIsFoundByItsPrompt) {
  const std::string source =
      "{%- set ns = namespace(last='', calls=[]) -%}{%- set rest = messages -%}"
      "{%- if messages[-1].role == 'assistant' -%}{%- set ns.last = messages[-1].content -%}"
      "{%- set rest = messages[:-1] -%}{%- endif -%}"
      "{%- for m in rest -%}{{ '<turn>' + m.role + '|' }}{{ m.content.strip() }}"
      "{{ '<end>\n' if m.role == 'assistant' else '\n' }}{%- endfor -%}"
      "{%- if add_generation_prompt or ns.last -%}{{ '<turn>assistant|' }}{{ '<think>' }}"
      "{%- endif -%}{%- if ns.last -%}{{ ns.last }}{{ '<end>\n\n' }}{%- endif -%}";
  EXPECT_EQ(trained(source, Json::array({say("user", "hi"), say("assistant", "One."),
                                         say("user", "and?"), say("assistant", "Two.")})),
            (Turns{"One.<end>", "Two.<end>"}));
}

}  // namespace
}  // namespace wick
