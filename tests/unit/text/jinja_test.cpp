// SPDX-License-Identifier: Apache-2.0
// Chat templates against what transformers rendered (jinja_goldens.json), the spans of assistant
// turns, and templates that try to do harm.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>

#include "io/json.h"
#include "text/chat_template.h"
#include "wick/error.h"

namespace wick {
namespace {

const std::string kFolder = WICK_SOURCE_DIR "/tests/unit/text/";

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

const Json& goldens() {
  static const Json kGoldens = read_json(kFolder + "jinja_goldens.json");
  return kGoldens;
}

TemplateInput input_of(const Json& messages) {
  TemplateInput input;
  input.messages = messages;
  input.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  input.date = "2026-01-02";
  return input;
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::string render(const std::string& source, const Json& extra = Json()) {
  TemplateInput input = input_of(Json::array());
  input.extra = extra;
  return ChatTemplate(source).render(input).text;
}

void expect_golden(const Json& golden, const std::string& source, const TemplateInput& input) {
  RenderedChat got;
  std::string error = error_of([&] { got = ChatTemplate(source, "golden").render(input); });
  if (golden.contains("error")) {
    EXPECT_NE(error, "") << "got the text " << got.text;
    // What templates say to people, and what names the mistake, is kept word for word.
    const std::string type = golden["type"];
    if (type == "TemplateError" || type == "UndefinedError" || type == "SecurityError") {
      EXPECT_NE(error.find(golden["error"].get<std::string>()), std::string::npos) << error;
    }
    return;
  }
  EXPECT_EQ(error, "");
  EXPECT_EQ(got.text, golden["text"].get<std::string>());
  Json spans = Json::array();
  for (const TemplateSpan& s : got.generation) spans.push_back(Json::array({s.begin, s.end}));
  EXPECT_EQ(spans, golden.value("generation", Json::array()));
}

// As transformers: a template finds the special tokens that the tokenizer names, and no others.
TEST(ChatTemplate, SpecialTokensAreDefinedWhereNamed) {
  TemplateInput input = input_of(Json::array());
  input.special_tokens = {{"eos_token", "</s>"}, {"pad_token", "<pad>"}, {"unk_token", ""}};
  ChatTemplate chat(
      "{{ bos_token is defined }}{{ bos_token }} {{ eos_token }} {{ pad_token }} {{ unk_token is "
      "defined }}");
  EXPECT_EQ(chat.render(input).text, "False </s> <pad> True");
  input.extra = Json{{"pad_token", "given"}};
  EXPECT_EQ(chat.render(input).text, "False </s> given True");
  EXPECT_NE(error_of([&] { ChatTemplate("{{ bos_token + 'x' }}").render(input); }), "");
}

// Models such as Hermes have a template of its own for conversations that offer tools.
TEST(ChatTemplate, ToolsHaveATemplateOfTheirOwn) {
  TemplateInput input = input_of(Json::array(
      {{{"role", "user"}, {"content", "u"}}, {{"role", "assistant"}, {"content", "a"}}}));
  ChatTemplate chat("{% for m in messages %}<{{ m.content }}>{% endfor %}", "x",
                    "{{ tools }}{% for m in messages %}[{% generation %}{{ m.content }}"
                    "{% endgeneration %}]{% endfor %}");
  EXPECT_EQ(chat.render(input).text, "<u><a>");
  EXPECT_FALSE(chat.has_generation_blocks(input));
  input.tools = Json::array({1});
  EXPECT_EQ(chat.render(input).text, "[1][u][a]");
  EXPECT_TRUE(chat.has_generation_blocks(input));
  EXPECT_EQ(assistant_spans(chat, input).size(), 2u);
  // One that cannot be used is of no matter without tools.
  ChatTemplate broken("plain", "x", "\n{{ 1 + }}");
  EXPECT_NE(error_of([&] { broken.render(input); }).find("x (tool_use):2: "), std::string::npos);
  input.tools = nullptr;
  EXPECT_EQ(broken.render(input).text, "plain");
}

TEST(Jinja, SnippetsRenderAsInTransformers) {
  TemplateInput input = input_of(goldens()["conversations"]["system"]);
  input.extra = goldens()["given"];
  for (const Json& golden : goldens()["snippets"]) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    expect_golden(golden, golden["template"].get<std::string>(), input);
  }
}

TEST(Jinja, WholeTemplatesRenderAsInTransformers) {
  for (const Json& golden : goldens()["templates"]) {
    SCOPED_TRACE(golden["template"].get<std::string>() + ", " +
                 golden["conversation"].get<std::string>());
    std::string source = read_file(kFolder + "templates/" + golden["template"].get<std::string>());
    TemplateInput input =
        input_of(goldens()["conversations"][golden["conversation"].get<std::string>()]);
    input.add_generation_prompt = golden["prompt"];
    if (golden["tools"]) input.tools = goldens()["tools"];
    input.extra = golden["extra"];
    expect_golden(golden, source, input);
  }
}

// --- spans
// ----------------------------------------------------------------------------------------

Json turns(const std::string& file, const std::string& conversation, const Json& extra = Json(),
           bool tools = false) {
  TemplateInput input = input_of(goldens()["conversations"][conversation]);
  input.extra = extra;
  if (tools) input.tools = goldens()["tools"];
  ChatTemplate chat_template(read_file(kFolder + "templates/" + file), file);
  std::string text = chat_template.render(input).text;
  Json out = Json::array();
  for (const AssistantSpan& span : assistant_spans(chat_template, input)) {
    EXPECT_EQ(input.messages[span.message_index]["role"], "assistant");
    out.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return out;
}

TEST(AssistantSpans, PlainTurnsEndWithTheirStopToken) {
  const std::pair<const char*, const char*> kStops[] = {
      {"turns.jinja", "<|done|>"},        {"bars.jinja", "<|stop|>"},
      {"macros.jinja", "</s-assistant>"}, {"indexed.jinja", "~"},
      {"opened_thought.jinja", "<|E|>"},  {"generation.jinja", "<|done|>"}};
  for (const auto& [file, stop_token] : kStops) {
    SCOPED_TRACE(file);
    const std::string stop = stop_token;
    EXPECT_EQ(turns(file, "one"), Json::array());
    EXPECT_EQ(turns(file, "two"), Json::array({"Hello!" + stop}));
    EXPECT_EQ(turns(file, "two", Json(), true), Json::array({"Hello!" + stop}));
    EXPECT_EQ(turns(file, "open"), Json::array({"Hello" + stop}));
    EXPECT_EQ(turns(file, "system"), Json::array({"Hello!" + stop, " Bye. " + stop}));
    EXPECT_EQ(turns(file, "unicode"), Json::array({"\u00a0\u4f60\u597d\U0001f600\u2028" + stop}));
  }
}

TEST(AssistantSpans, HeadersAndPlacesOfStopTokensVary) {
  EXPECT_EQ(turns("header.jinja", "system"), Json::array({"Hello!<|end|>", "Bye.<|end|>"}));
  EXPECT_EQ(turns("model_role.jinja", "two"), Json::array({"Hello!<close>"}));
  EXPECT_EQ(turns("brackets.jinja", "system"), Json::array({" Hello!</s>", "  Bye. </s>"}));
  EXPECT_EQ(turns("plain_names.jinja", "system"), Json::array({" Hello!</s>", "  Bye. </s>"}));
}

TEST(AssistantSpans, ReasoningOfEarlierTurnsMayBeGone) {
  const Json kOff = {{"enable_thinking", false}};
  EXPECT_EQ(turns("reasoning.jinja", "two"),
            Json::array({"<think>\n\n</think>\n\nHello!<|done|>"}));
  EXPECT_EQ(turns("reasoning.jinja", "two", kOff), Json::array({"Hello!<|done|>"}));
  EXPECT_EQ(turns("reasoning.jinja", "thinking"),
            Json::array({"4<|done|>", "<think>\nAlso easy.\n</think>\n\n6<|done|>"}));
  EXPECT_EQ(turns("reasoning.jinja", "thinking", kOff),
            Json::array({"4<|done|>", "<think>\nAlso easy.\n</think>\n\n6<|done|>"}));
  EXPECT_EQ(turns("reasoning.jinja", "reasoning_field"),
            Json::array({"4<|done|>", "<think>\nSo\n</think>\n\n5<|done|>"}));
  EXPECT_EQ(turns("opened_thought.jinja", "thinking"), Json::array({"\n\n4<|E|>", "\n\n6<|E|>"}));
}

TEST(AssistantSpans, ToolCallsAreTheModelsOwn) {
  const std::string kCall =
      R"({"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "x": [1.5, null, true]}})";
  EXPECT_EQ(turns("turns.jinja", "tools", Json(), true),
            Json::array({"<call>" + kCall + "</call><|done|>", "21 degrees.<|done|>"}));
  EXPECT_EQ(turns("reasoning.jinja", "tools")[0], "\n<call>" + kCall + "</call><|done|>");
  EXPECT_EQ(turns("generation.jinja", "tools")[0], "<call>" + kCall + "</call><|done|>");
  EXPECT_EQ(turns("header.jinja", "tools", Json(), true)[0],
            R"({"name": "get_weather", "parameters": )"
            R"({"city": "Zürich", "days": 2, "x": [1.5, null, true]}}<|end|>)");
  EXPECT_EQ(turns("brackets.jinja", "tools_twice", Json(), true)[0],
            "[CALLS][" + kCall.substr(0, kCall.size() - 1) + R"(, "id": "call00001"}, )" +
                R"({"name": "noop", "arguments": {}, "id": "call00002"}]</s>)");
  EXPECT_EQ(turns("macros.jinja", "tools")[0],
            R"(<call get_weather city="Zürich" days=2 x=[1.5, null, true]/></s-assistant>)");
  // What closes the results is in the prompt, not the model's.
  EXPECT_EQ(turns("opened_thought.jinja", "tools")[1], "21 degrees.<|E|>");
}

TEST(AssistantSpans, EmptyAndRepeatedTextsAreToldApart) {
  EXPECT_EQ(turns("turns.jinja", "empty"), Json::array({"<|done|>", "<|done|>"}));
  EXPECT_EQ(turns("header.jinja", "empty"), Json::array({"<|end|>", "<|end|>"}));
  EXPECT_EQ(turns("turns.jinja", "repeats"),
            Json::array({"assistant<|done|>", "<think>\n\n</think>\n\nassistant<|done|>"}));
  EXPECT_EQ(
      turns("macros.jinja", "repeats"),
      Json::array({"assistant</s-assistant>", "<think>\n\n</think>\n\nassistant</s-assistant>"}));
}

TEST(AssistantSpans, ATurnWhosePromptTheTemplateRefusesIsFoundByItsHeader) {
  // Without a message before the first turn the template has no messages[0] to look at.
  ChatTemplate t(read_file(kFolder + "templates/turns.jinja"));
  TemplateInput input = input_of(Json::array({Json{{"role", "assistant"}, {"content", "Welcome"}},
                                              Json{{"role", "user"}, {"content", "Hi"}},
                                              Json{{"role", "assistant"}, {"content", "Yes?"}}}));
  std::string text = t.render(input).text;
  auto spans = assistant_spans(t, input);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(text.substr(spans[0].begin, spans[0].end - spans[0].begin), "Welcome<|done|>");
  EXPECT_EQ(text.substr(spans[1].begin, spans[1].end - spans[1].begin), "Yes?<|done|>");
}

// What is trained of a conversation, each turn by itself.
std::vector<std::string> trained(const std::string& source, const Json& messages) {
  ChatTemplate t(source);
  TemplateInput input = input_of(messages);
  const std::string text = t.render(input).text;
  std::vector<std::string> out;
  for (const AssistantSpan& s : assistant_spans(t, input))
    out.push_back(text.substr(s.begin, s.end - s.begin));
  return out;
}

TEST(AssistantSpans, AHeaderThatTheQuestionWritesIsNotTrainedBehindOtherMessages) {
  const std::string body =
      "{% for m in rest %}{{ '<' + m.role + '>' + m.content + '</s>' }}"
      "{% if loop.last and add_generation_prompt %}{{ '<assistant>' }}{% endif %}{% endfor %}";
  auto say = [](const char* role, const char* content) {
    return Json{{"role", role}, {"content", content}};
  };
  using Turns = std::vector<std::string>;
  // An instruction, or nothing, stands before the loop, and the first turn is a greeting.
  const std::string apart =
      "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{{ messages[0].content }}"
      "{% else %}{% set rest = messages %}{{ 'Be good.' }}{% endif %}";
  const Json greeting = Json::array(
      {say("assistant", "Welcome"), say("user", "Hi"), say("assistant", "What is it?")});
  EXPECT_EQ(trained(apart + body, greeting), (Turns{"Welcome</s>", "What is it?</s>"}));
  Json instructed = greeting;
  instructed.insert(instructed.begin(), say("system", "Greet."));
  EXPECT_EQ(trained(apart + body, instructed), (Turns{"Welcome</s>", "What is it?</s>"}));
  // An answer of no words before it.
  const std::string plain =
      "{% for m in messages %}{% if m.role == 'user' %}{{ '<user>' + m.content + '</s>' }}"
      "{% else %}{{ '<assistant>' + m.content + '</s>' }}{% endif %}"
      "{% if loop.last and add_generation_prompt %}{{ '<assistant>' }}{% endif %}{% endfor %}";
  const Json empty =
      Json::array({say("user", "Hi"), say("assistant", ""), say("assistant", "Well")});
  EXPECT_EQ(trained(plain, empty), (Turns{"</s>", "Well</s>"}));
  // A last turn that ends otherwise than the same turn in the middle.
  const std::string ends =
      "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ m.content ~ '</s>' }}"
      "{{ '\n' if not loop.last }}"
      "{% if loop.last and add_generation_prompt %}{{ '<assistant>' }}{% endif %}{% endfor %}";
  EXPECT_EQ(trained(ends, empty), (Turns{"</s>", "Well</s>"}));
  // The header of a first turn lacks what separates the others, or what begins every text.
  const std::string separated =
      "{% for m in messages %}{{ '\n' if not loop.first }}{{ m.role ~ ':' }}{{ m.content }}"
      "{% endfor %}{{ '\nassistant:' if add_generation_prompt }}";
  EXPECT_EQ(trained(separated, greeting), (Turns{"Welcome", "What is it?"}));
  const std::string opened =
      "{{ bos_token }}{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{{ m.content ~ '</s>' }}"
      "{% endfor %}{{ '<assistant><think>' if add_generation_prompt }}";
  EXPECT_EQ(trained(opened, greeting), (Turns{"Welcome</s>", "What is it?</s>"}));
}

TEST(AssistantSpans, WhatOthersSayInATurnIsNotTrained) {
  const std::string source =
      "{% if messages[0].role == 'system' %}{% set first = messages[0].content + ' | ' %}"
      "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}"
      "{% endif %}{% for m in rest %}{{ '<' + m.role + '>' + (first if loop.first else '') }}"
      "{{ m.content + '</s>' }}{% endfor %}{{ '<assistant>' if add_generation_prompt }}";
  const Json system = {{"role", "system"}, {"content", "Be good."}},
             answer = {{"role", "assistant"}, {"content", "Welcome"}},
             question = {{"role", "user"}, {"content", "Hi"}};
  EXPECT_EQ(trained(source, Json::array({system, question, answer})),
            std::vector<std::string>{"Welcome</s>"});
  EXPECT_EQ(trained(source, Json::array({system, answer, question})),
            std::vector<std::string>{" | Welcome</s>"});
}

TEST(AssistantSpans, PartsOfContentAreDataToo) {
  ChatTemplate t(read_file(kFolder + "templates/macros.jinja"));
  Json parts = Json::array({Json{{"type", "text"}, {"text", "one "}}, Json{{"type", "image"}},
                            Json{{"type", "text"}, {"text", "two"}}});
  TemplateInput input = input_of(Json::array({Json{{"role", "user"}, {"content", parts}},
                                              Json{{"role", "assistant"}, {"content", parts}}}));
  std::string text = t.render(input).text;
  auto spans = assistant_spans(t, input);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(text.substr(spans[0].begin, spans[0].end - spans[0].begin),
            "one <image>two</s-assistant>");
}

TEST(AssistantSpans, TheEosTokenMayFollowTheLoop) {
  ChatTemplate t(
      "{% for m in messages %}{% if not loop.first %}{{ eos_token }}{% endif %}"
      "{{ '[' ~ m.role ~ ']' ~ m.content }}{% endfor %}{{ eos_token }}"
      "{% if add_generation_prompt %}[assistant]{% endif %}");
  TemplateInput input = input_of(goldens()["conversations"]["system"]);
  std::string text = t.render(input).text;
  Json got = Json::array();
  for (const AssistantSpan& s : assistant_spans(t, input))
    got.push_back(text.substr(s.begin, s.end - s.begin));
  EXPECT_EQ(got, Json::array({"Hello!</s>", " Bye. </s>"}));
}

TEST(AssistantSpans, WhatCannotBeToldIsAnErrorThatSaysWhatToDo) {
  ChatTemplate t("{{ messages[0].content }}|{{ messages[1].content }}",
                 "models/x/chat_template.jinja");
  TemplateInput input = input_of(goldens()["conversations"]["two"]);
  std::string error = error_of([&] { assistant_spans(t, input); });
  EXPECT_NE(error.find("models/x/chat_template.jinja"), std::string::npos) << error;
  EXPECT_NE(error.find("message 1"), std::string::npos) << error;
  EXPECT_NE(error.find("{% generation %}"), std::string::npos) << error;
}

TEST(AssistantSpans, MessagesThatAreLeftOutHaveNone) {
  ChatTemplate t("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
  EXPECT_TRUE(assistant_spans(t, input_of(goldens()["conversations"]["two"])).empty());
}

TEST(RenderedChat, TellsWhatWasWrittenForEachMessage) {
  ChatTemplate t(
      "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}");
  RenderedChat got = t.render(input_of(goldens()["conversations"]["two"]));
  ASSERT_EQ(got.messages.size(), 2u);
  auto part = [&](size_t i) {
    return got.text.substr(got.messages[i].begin, got.messages[i].end - got.messages[i].begin);
  };
  EXPECT_EQ(part(0), "<user>Hi there\n");
  EXPECT_EQ(part(1), "<assistant>Hello!\n");
  EXPECT_FALSE(got.has_generation_blocks);
}

TEST(RenderedChat, GenerationBlocksAreFoundThroughMacrosToo) {
  ChatTemplate t(
      "ab{% macro m(x) %}[{% generation %}{{ x }}!{% endgeneration %}]{% endmacro %}"
      "{{ m('c') }}{% set s %}{{ m('d') }}{% endset %}{{ s }}");
  RenderedChat got = t.render(input_of(Json::array()));
  EXPECT_EQ(got.text, "ab[c!][d!]");
  ASSERT_EQ(got.generation.size(), 2u);
  EXPECT_EQ(got.generation[0].begin, 3u);
  EXPECT_EQ(got.generation[0].end, 5u);
  EXPECT_EQ(got.generation[1].begin, 7u);
  EXPECT_EQ(got.generation[1].end, 9u);
  EXPECT_TRUE(got.has_generation_blocks);
}

// --- errors and bounds
// ----------------------------------------------------------------------------

TEST(JinjaErrors, NameTheTemplateAndTheLine) {
  EXPECT_NE(error_of([] { ChatTemplate("a\nb\n{{ 1 + }}", "x.jinja"); }).find("x.jinja:3: "),
            std::string::npos);
  ChatTemplate t("a\n{% if true %}\n  {{ nope.x }}\n{% endif %}", "x.jinja");
  EXPECT_NE(error_of([&] { t.render(input_of(Json::array())); }).find("x.jinja:3: 'nope' is"),
            std::string::npos);
}

TEST(JinjaErrors, InputIsChecked) {
  ChatTemplate t("{{ messages }}");
  TemplateInput input = input_of(Json::array({1}));
  EXPECT_NE(error_of([&] { t.render(input); }), "");
  input = input_of(Json::object());
  EXPECT_NE(error_of([&] { t.render(input); }), "");
  input = input_of(Json::array());
  input.date = "2026-02-30";
  EXPECT_NE(error_of([&] { t.render(input); }), "");
  input.date = "today";
  EXPECT_NE(error_of([&] { t.render(input); }), "");
  input.date = std::nullopt;
  EXPECT_EQ(error_of([&] { t.render(input); }), "");
  input.extra = {{"messages", 1}};
  EXPECT_NE(error_of([&] { t.render(input); }), "");
}

TEST(JinjaBounds, HostileTemplatesEndInErrors) {
  std::string chain = "{{ 1", parens = "{{ ", nots = "{{ ", ifs;
  for (int i = 0; i < 20000; ++i) {
    chain += "+1";
    parens += "(";
    nots += "not ";
    ifs += "{% if 1 %}";
  }
  const std::string kTemplates[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{{ 'a' * 99999999999 }}",
      "{{ ('a' * 1000000) * 1000 }}",
      "{{ [1] * 99999999999 }}",
      "{% for i in range(9999) %}{{ 'x' * 100000 }}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(n) %}{{ n }}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}{{ ns.l }}",
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}"
      "{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
      "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
      "{{ 2 ** 99999 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 'a'.ljust(99999999999) }}",
      "{{ '%99999999d' % 1 }}",
      "{{ '{:99999999}'.format(1) }}",
      "{{ ('x' * 60000000).replace('x', 'yyyyyyyyyyyy') }}",
      "{% set s = '%' * 20000000 %}{{ (s % ()) | length }}",
      "{{ ('{' * 60000000).format() | length }}",
      "{{ [1] | slice(10 ** 9) | list | length }}",
      "{% set s = 'a' * 60000000 %}{{ s ~ s ~ s ~ s }}",
      chain + " }}",
      parens,
      nots + "1 }}",
      ifs,
  };
  for (const std::string& source : kTemplates) {
    SCOPED_TRACE(source.substr(0, 100));
    EXPECT_NE(error_of([&] { render(source); }), "");
  }
}

// Each of these touches the bytes of a long text again and again.
TEST(JinjaBounds, EveryByteOfAStringIsCharged) {
  const std::string long_text = "{% set s = 'a' * 3000000 %}";
  const std::string wanted = long_text + "{% set w = 'a' * 1500000 ~ 'b' %}";
  std::vector<std::string> templates;
  for (const char* once :
       {"s.find(w)", "s.rfind(w)", "w in s", "s.count(w)", "s.split(w)", "s.rsplit(w)",
        "s.replace(w, '')", "s.partition(w)", "s.rpartition(w)", "s.index(w)"})
    templates.push_back(wanted + "{{ " + once + " }}");
  for (const char* each : {"s.startswith(s)", "s.endswith(s)", "s.removeprefix(s)", "s | int",
                           "s | float", "{s: 1, t: 2}", "d[t]", "d.get(t)", "t in d", "d == c",
                           "dict([(s, 1), (t, 2)])", "s is sameas(t)", "[] | join(s)",
                           "1 | attr(s)", "'%.1s' % s", "'{:.1}'.format(s)", "s is lower"})
    templates.push_back(long_text +
                        "{% set t = 'a' * 3000000 %}{% set d = {s: 1} %}{% set c = {t: 1} %}"
                        "{% for i in range(100000) %}{% set x = " +
                        each + " %}{% endfor %}");
  templates.push_back(long_text + "{{ dict(range(99998) | batch(2)) | length }}");
  for (const std::string& source : templates) {
    SCOPED_TRACE(source.substr(long_text.size()));
    EXPECT_NE(error_of([&] { render(source); }).find("steps"), std::string::npos);
  }
}

TEST(JinjaBounds, LongTextsOfMessagesAreSearched) {
  EXPECT_EQ(render("{% set s = 'abc ' * 500000 ~ 'x' %}{% set w = 'abc ' * 5 ~ 'x' %}"
                   "{{ w in s }} {{ s.find(w) }} {{ s.rfind('a') }} {{ s.count('bc') }} "
                   "{{ s.split(' ') | length }} {{ s.rsplit(' ', 1)[1] }} {{ ''.rfind('') }} "
                   "{{ 'ab'.rfind('') }} {{ s.find('', 3) }}"),
            "True 1999980 1999996 500000 500001 x 0 2 3");
  EXPECT_EQ(render("{{ (('a' ~ 'b') * 200000).split('b') | length }}"), "200001");
}

TEST(JinjaBounds, StateThatRefersToItselfIsLetGo) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}ok"), "ok");
  EXPECT_EQ(
      render("{% set ns = namespace(f=none) %}{% for i in range(20000) %}{% set old = ns.f %}"
             "{% macro m() %}{{ i }}{% endmacro %}{% set ns.f = m %}{% endfor %}{{ ns.f() }}"),
      "19999");
}

}  // namespace
}  // namespace wick
