// SPDX-License-Identifier: Apache-2.0
// Formats and masks.
#include "data/dataset.h"

#include "unit/data/fixture.h"

namespace wick::data_test {
namespace {

TEST_F(DataTest, TextIsAllTrained) {
  EXPECT_EQ(marks(R"({"text": "hello you"})"), "<s>【hello you<|im_end|>】");
  options.mask_prompt = false;
  EXPECT_EQ(marks(R"({"text": "hello you"})"), "<s>【hello you<|im_end|>】");
}

TEST_F(DataTest, TextKeepsItsOwnEnd) {
  EXPECT_EQ(marks(R"({"text": "hello<|im_end|>"})"), "<s>【hello<|im_end|>】");
}

TEST_F(DataTest, TheFirstTokenIsNeverTrained) {
  tokenizer = make_tokenizer({.adds_bos = false});
  EXPECT_EQ(marks(R"({"text": "hello you"})"), "hello【 you<|im_end|>】");
}

TEST_F(DataTest, CompletionsThroughTheTemplate) {
  EXPECT_EQ(marks(R"({"prompt": "hi", "completion": "hello"})"),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n【hello<|im_end|>】\n");
}

TEST_F(DataTest, CompletionsWithoutATemplate) {
  EXPECT_EQ(marks(R"({"prompt": "hi", "completion": "hello"})", nullptr),
            "<s>hi【hello<|im_end|>】");
  EXPECT_EQ(marks(R"({"prompt": "hi", "completion": ""})", nullptr), "<s>hi【<|im_end|>】");
  EXPECT_EQ(marks(R"({"prompt": "", "completion": "hello"})", nullptr), "<s>【hello<|im_end|>】");
}

TEST_F(DataTest, ATokenAcrossTheBoundaryIsTrained) {
  // " yes" is one token.
  EXPECT_EQ(marks(R"({"prompt": "hi:", "completion": " yes"})", nullptr),
            "<s>hi:【 yes<|im_end|>】");
  EXPECT_EQ(marks(R"({"prompt": "hi: ", "completion": "yes"})", nullptr),
            "<s>hi:【 yes<|im_end|>】");
  EXPECT_EQ(marks(R"({"messages": [{"role": "user", "content": "hi"},
                                   {"role": "assistant", "content": "yes"}]})",
                  "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
                  "{% if add_generation_prompt %}assistant: {% endif %}"),
            "user: hi<|im_end|>assistant:【 yes<|im_end|>】");
}

TEST_F(DataTest, CharactersThatAreCutIntoBytes) {
  EXPECT_EQ(marks(R"({"prompt": "é", "completion": "🙂"})", nullptr),
            "<s>é【🙂<|im_end|>】");
}

TEST_F(DataTest, CompletionsOfMessages) {
  // Only the completion is trained, not the assistant's part of the prompt.
  EXPECT_EQ(
      marks(R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                           {"role": "user", "content": "c"}],
                "completion": [{"role": "assistant", "content": "d"}]})"),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
      "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n【d<|im_end|>】\n");
  EXPECT_EQ(marks(R"({"prompt": [{"role": "user", "content": "a"}], "completion": "d"})"),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n【d<|im_end|>】\n");
}

TEST_F(DataTest, EveryAssistantTurnIsTrained) {
  EXPECT_EQ(
      marks(
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                             {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})"),
      "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n【b<|im_end|>】\n"
      "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n【d<|im_end|>】\n");
}

TEST_F(DataTest, WithoutMaskingAllButTheFirst) {
  options.mask_prompt = false;
  EXPECT_EQ(marks(R"({"prompt": "hi", "completion": "hello"})"),
            "<|im_start|>【user\nhi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n】");
  EXPECT_EQ(marks(R"({"prompt": "hi", "completion": "hello"})", nullptr),
            "<s>【hihello<|im_end|>】");
}

TEST_F(DataTest, GenerationBlocks) {
  const char* row = R"({"messages": [{"role": "user", "content": "a"},
                                     {"role": "assistant", "content": "b"}]})";
  // The stop token is outside the block, and inside with the newline after it.
  for (const char* body : {"{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>\n",
                           "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{{ '\n' }}",
                           "{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}"}) {
    std::string source = std::string(
                             "{% for m in messages %}<|im_start|>{{ m.role }}\n"
                             "{% if m.role == 'assistant' %}") +
                         body + "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}";
    ExampleSet set = load(one_line(row), source.c_str());
    EXPECT_EQ(marked(set[0], tokenizer),
              "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n【b<|im_end|>】\n")
        << source;
    EXPECT_TRUE(set.issues().empty()) << set.issues()[0].str();
  }
}

TEST_F(DataTest, TheHeaderOfTheNextTurnIsNoStopToken) {
  ExampleSet set =
      load(one_line(R"({"messages": [{"role": "assistant", "content": "a"},
                                      {"role": "user", "content": "b"}]})"),
           "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.role == 'assistant' %}"
           "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}"
           "{% endif %}{% endfor %}");
  EXPECT_EQ(marked(set[0], tokenizer), "<|im_start|>assistant:【a】<|im_start|>user:b");
  ASSERT_EQ(set.issues().size(), 1u);
  EXPECT_EQ(set.issues()[0].kind, DataIssueKind::kNoStopToken);
}

TEST_F(DataTest, ATemplateThatWritesBosGetsNoSecondOne) {
  EXPECT_EQ(marks(R"({"prompt": "hi", "completion": "hello"})",
                  "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                  "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
                  "{% endif %}"),
            "<s><|im_start|>user\nhi<|im_end|><|im_start|>assistant\n【hello<|im_end|>】");
}

constexpr const char* kToolTemplate =
    "{% if tools %}{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content %}{{ m.content }}{% endif %}"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}{% set f = call.function %}"
    "<call>{{ f.name }} {{ f.arguments | tojson }}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}";

TEST_F(DataTest, ToolCalls) {
  for (const char* arguments : {R"({"x": 1})", R"("{\"x\": 1}")", R"("{\"x\":1}")"}) {
    std::string row = std::string(R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
       "function": {"name": "f", "arguments": )") +
                      arguments + R"(}}]}, {"role": "tool", "content": "42"},
      {"role": "assistant", "content": "d"}], "tools": [{"name": "f"}]})";
    EXPECT_EQ(marks(row, kToolTemplate),
              "[{\"name\": \"f\"}]<|end|><|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
              "【<call>f {\"x\": 1}<|im_end|>】\n<|im_start|>tool\n42<|im_end|>\n"
              "<|im_start|>assistant\n【d<|im_end|>】\n");
  }
}

TEST_F(DataTest, ToolCallsMayBeFlatAndTheirArgumentsFreeText) {
  const char* flat =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for call in m.tool_calls or [] %}"
      "{{ call.name }} {{ call.arguments }}{% endfor %}{{ m.content or '' }}<|im_end|>\n"
      "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_EQ(marks(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
                      "tool_calls": [{"name": "f", "arguments": "2 + 2"}]}]})",
                  flat),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n【f 2 + 2<|im_end|>】\n");
}

TEST_F(DataTest, ArgumentsThatTheTemplateJoinsToATextStayTheTextThatTheyAre) {
  const char* joins =
      "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}"
      "{% for call in m.tool_calls or [] %}{{ call.name + ' ' + call.arguments }}{% endfor %}"
      "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  for (const char* content : {"null", R"("")"})
    EXPECT_EQ(marks(std::string(R"({"messages": [{"role": "user", "content": "a"},
                        {"role": "assistant", "tool_calls":
                         [{"name": "f", "arguments": "{\"x\":1}"}], "content": )") +
                        content + "}]}",
                    joins),
              "<|im_start|>user\na<|im_end|>\n"
              "<|im_start|>assistant\n【f {\"x\":1}<|im_end|>】\n");
  // Where it fails either way, the reason is that of objects.
  refused(one_line(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant",
                       "content": "", "tool_calls": [{"name": 1, "arguments": "{\"x\": 1}"}]}]})"),
          {"unsupported operand"}, joins);
}

TEST_F(DataTest, ContentMayBeNullForTemplatesThatWantAString) {
  const char* strict =
      "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}"
      "{% for call in m.tool_calls or [] %}{{ call.name }}{% endfor %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  for (const char* content : {R"("content": null, )", "", R"("content": "", )"}) {
    std::string row = std::string(R"({"messages": [{"role": "assistant", )") + content +
                      R"("tool_calls": [{"name": "f"}]}]})";
    EXPECT_EQ(marks(row, strict), "<|im_start|>assistant\n【f<|im_end|>】\n");
  }
  // And where templates tell null from "", null it stays.
  EXPECT_EQ(marks(R"({"messages": [{"role": "assistant", "content": null,
                                    "tool_calls": [{"name": "f"}]}]})",
                  "{% for m in messages %}<|im_start|>{% if m.content is none %}"
                  "{{ m.tool_calls[0].name }}{% endif %}<|im_end|>{% endfor %}"
                  "{% if add_generation_prompt %}<|im_start|>{% endif %}"),
            "<|im_start|>【f<|im_end|>】");
}

TEST_F(DataTest, ContentInTextPartsIsTheirText) {
  EXPECT_EQ(marks(R"({"messages": [
      {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
      {"role": "assistant", "content": [{"type": "text", "text": "hello"}]}]})"),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n【hello<|im_end|>】\n");
}

TEST_F(DataTest, ATemplateThatLeavesToolCallsOutIsNamed) {
  ExampleSet set = load(one_line(R"({"messages": [{"role": "assistant", "content": "",
                                     "tool_calls": [{"function": {"name": "zebra"}}]}]})"));
  ASSERT_EQ(set.issues().size(), 1u);
  EXPECT_NE(set.issues()[0].what.find("tool calls of messages[0]"), std::string::npos);
}

TEST_F(DataTest, ATemplateThatLeavesAnAnswersWordsOutIsNamed) {
  const char* calls_only =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
      "{{ m.tool_calls[0].name }}{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}"
      "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  auto row = [](const char* content) {
    return one_line(std::string(R"({"messages": [{"role": "user", "content": "hi"},
        {"role": "assistant", "content": ")") +
                    content + R"(", "tool_calls": [{"name": "f"}]}]})");
  };
  ExampleSet set = load(row("Let me look."), calls_only);
  ASSERT_EQ(set.issues().size(), 1u);
  EXPECT_NE(set.issues()[0].what.find("content of messages[1]"), std::string::npos);
  EXPECT_TRUE(load(row(" "), calls_only).issues().empty());
}

TEST_F(DataTest, MembersThatSayNothingAreAsIfNotThere) {
  // As tables and chat APIs write them; both templates ask whether the member is there at all.
  for (const char* asks :
       {"{% if 'tool_calls' in m %}CALLS{% else %}{{ m.content }}{% endif %}",
        "{% if m.tool_calls is defined %}CALLS{% else %}{{ m.content }}{% endif %}"})
    for (const char* member : {"", R"(, "tool_calls": [])", R"(, "tool_calls": null)",
                               R"(, "tool_calls": null, "name": null, "refusal": null)"}) {
      const std::string source =
          std::string("{% for m in messages %}<|im_start|>{{ m.role }}\n") + asks +
          "{% if m.name is defined %}{{ m.name }}{% endif %}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
      EXPECT_EQ(marks(std::string(R"({"messages": [{"role": "user", "content": "hi"},
                                      {"role": "assistant", "content": "yo")") +
                          member + "}]}",
                      source.c_str()),
                "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n【yo<|im_end|>】\n")
          << member;
    }
}

TEST_F(DataTest, ATemplateThatLeavesToolsOutIsNamed) {
  const std::string row = one_line(R"({"messages": [{"role": "user", "content": "use zebra"},
      {"role": "assistant", "content": "no"}], "tools": [{"name": "zebra"}]})");
  ExampleSet set = load("{\"text\": \"a\"}\n" + row);
  ASSERT_EQ(set.issues().size(), 1u);
  EXPECT_NE(set.issues()[0].what.find("does not write the row's tools"), std::string::npos);
  EXPECT_EQ(set.issues()[0].line, 2);
  EXPECT_TRUE(load(row, kToolTemplate).issues().empty());
}

TEST_F(DataTest, ToolsMayBeAString) {
  const char* row = R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}], "tools": "[{\"name\": \"f\"}]"})";
  EXPECT_EQ(marks(row, kToolTemplate).substr(0, 24), "[{\"name\": \"f\"}]<|end|><|");
  refused(R"({"messages": [{"role": "user", "content": "a"}], "tools": {}})",
          {"rows.jsonl:1: ", "\"tools\" is an object"}, kToolTemplate);
  refused(R"({"messages": [{"role": "user", "content": "a"}], "tools": "nonsense"})",
          {"rows.jsonl:1: ", "tools"}, kToolTemplate);
}

TEST_F(DataTest, SystemPromptGoesWhereThereIsNone) {
  options.system_prompt = "S";
  EXPECT_EQ(marks(R"({"prompt": "hi", "completion": "yo"})"),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
            "<|im_start|>assistant\n【yo<|im_end|>】\n");
  EXPECT_EQ(marks(R"({"messages": [{"role": "system", "content": "T"},
                                   {"role": "assistant", "content": "yo"}]})"),
            "<|im_start|>system\nT<|im_end|>\n<|im_start|>assistant\n【yo<|im_end|>】\n");
  refused(R"({"prompt": "hi", "completion": "yo"})", {"system prompt", "chat template"}, nullptr);
}

TEST_F(DataTest, ChatTemplateConfigReachesTheTemplate) {
  options.chat_template_config = Json{{"mood", "glad"}};
  EXPECT_EQ(marks(R"({"prompt": "hi", "completion": "yo"})",
                  "{{ mood }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
                  "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
                  "{% endif %}")
                .substr(0, 8),
            "glad<|im");
  options.chat_template_config = Json::array();
  refused(R"({"text": "a"})", {"chat_template_config is an array"});
}

TEST_F(DataTest, RowsOfAllFormatsInOneFile) {
  ExampleSet set = load(
      "\xEF\xBB\xBF{\"text\": \"hello you\"}\r\n"
      "\n"
      "{\"prompt\": \"a\", \"completion\": \"b\", \"text\": \"not this\"}\n"
      "{\"text\": null, \"prompt\": null, \"messages\": [{\"role\": \"assistant\", "
      "\"content\": \"c\"}]}");
  ASSERT_EQ(set.size(), 3);
  EXPECT_EQ(set[0].format, RowFormat::kText);
  EXPECT_EQ(set[1].format, RowFormat::kCompletions);
  EXPECT_EQ(set[2].format, RowFormat::kChat);
  EXPECT_EQ(set[0].line, 1);
  EXPECT_EQ(set[1].line, 3);
  EXPECT_EQ(set[2].line, 4);
  EXPECT_EQ(set.file(), "rows.jsonl");
}

TEST_F(DataTest, KeysMayHaveOtherNames) {
  options.prompt_key = "question";
  options.completion_key = "answer";
  options.text_key = "body";
  options.messages_key = "turns";
  EXPECT_EQ(marks(R"({"question": "hi", "answer": "yo"})", nullptr), "<s>hi【yo<|im_end|>】");
  EXPECT_EQ(marks(R"({"body": "yo"})"), "<s>【yo<|im_end|>】");
  EXPECT_EQ(marks(R"({"turns": [{"role": "assistant", "content": "yo"}]})"),
            "<|im_start|>assistant\n【yo<|im_end|>】\n");
  refused(R"({"text": "a"})", {"\"body\"", "\"question\"", "\"answer\"", "\"turns\""});
}

TEST_F(DataTest, PromptsInTheRowsOwnWordsAreKeptOnRequest) {
  const std::string rows =
      R"({"text": "no prompt"})"
      "\n"
      R"({"prompt": "hello", "completion": "yes"})"
      "\n"
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a\nb"},)"
      R"( {"role": "assistant", "content": "c"}]})"
      "\n"
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},)"
      R"( {"role": "user", "content": [{"type": "text", "text": "c"}]},)"
      R"( {"role": "assistant", "content": "d"}]})"
      "\n"
      R"({"prompt": "one too many", "completion": "yes"})";
  options.keep_prompts = 3;
  const char* wanted[] = {"", "hello", "a\nb", "user: a\nassistant: b\nuser: c", ""};
  ExampleSet set = load(rows);
  ASSERT_EQ(set.size(), 5);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(set[i].prompt, wanted[i]) << i;
  options.keep_prompts = 0;
  EXPECT_EQ(load(rows)[1].prompt, "");
  options.keep_prompts = 1;
  EXPECT_EQ(load(R"({"prompt": "say ", "completion": "a"})", nullptr)[0].prompt, "say ");
}

TEST_F(DataTest, TheFingerprintSeesTokensAndWhatIsTrained) {
  const std::string row = R"({"prompt": "a", "completion": "b"})";
  const uint64_t print = load(row).fingerprint();
  EXPECT_EQ(load(row).fingerprint(), print);
  EXPECT_NE(load(R"({"prompt": "a", "completion": "c"})").fingerprint(), print);
  EXPECT_NE(load(row + "\n" + row).fingerprint(), print);
  options.mask_prompt = false;
  EXPECT_NE(load(row).fingerprint(), print);
}

TEST_F(DataTest, TextAndOffsetsAreKeptOnRequest) {
  EXPECT_TRUE(load(R"({"text": "hello"})")[0].text.empty());
  options.keep_text = true;
  ExampleSet set = load(R"({"text": "hello"})");
  EXPECT_EQ(set[0].text, "hello");
  ASSERT_EQ(set[0].tokens.size(), set[0].ids.size());
  EXPECT_EQ(set[0].tokens[1].begin, 0u);
  EXPECT_EQ(set[0].tokens[1].end, 5u);
}

}  // namespace
}  // namespace wick::data_test
