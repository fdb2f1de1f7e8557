// SPDX-License-Identifier: Apache-2.0
// tokenize, template, data and devices.
#include <gtest/gtest.h>
#include <signal.h>

#include <utility>

#include "cli/cli.h"

namespace wick::test {
namespace {

class Text : public testing::Test {
 protected:
  void SetUp() override { write_tiny_model(model_); }
  TempFolder folder_;
  std::string model_ = folder_.path("model");
};

TEST_F(Text, TokenizeGivesIdsAndPieces) {
  CliResult r = wick({"tokenize", "--model", model_}, "Hi</s>");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out, "256 72 105 257\n");
  EXPECT_EQ(wick({"tokenize", "--model", model_, "--text", "Hi", "--no-special"}).out, "72 105\n");
  CliResult json = wick({"tokenize", "--model", model_, "--json", "--no-special"}, "a b");
  ASSERT_EQ(json.lines().size(), 1u);
  EXPECT_EQ(json.lines()[0]["ids"], Json({97, 32, 98}));
  EXPECT_EQ(json.lines()[0]["pieces"], Json({"a", "Ġ", "b"}));
  EXPECT_EQ(wick({"tokenize", "--model", model_, "--no-special", "--text", ""}).out, "\n");
}

// People have the tokenizers of models whose weights they do not.
TEST_F(Text, AFolderNeedsNoWeights) {
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::remove(model_ + "/" + file);
  EXPECT_EQ(wick({"tokenize", "--model", model_, "--text", "Hi", "--no-special"}).out, "72 105\n");
  EXPECT_EQ(wick({"tokenize", "--model", model_, "--decode", "72", "105"}).out, "Hi");
  const std::string messages = folder_.write("m.json", R"([{"role": "user", "content": "hi"}])");
  const CliResult r = wick({"template", "--model", model_, "--messages", messages});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("hi"), std::string::npos);
  std::filesystem::remove(model_ + "/tokenizer.json");
  const CliResult none = wick({"tokenize", "--model", model_, "--text", "Hi"});
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("no tokenizer.json"), std::string::npos) << none.err;
}

TEST_F(Text, TokenizeRoundTrip) {
  const std::string text = "Grüße, 世界! 🕯️\n\ttab\\n <|user|> end ";
  CliResult ids = wick({"tokenize", "--model", model_, "--no-special"}, text);
  EXPECT_EQ(ids.code, 0);
  CliResult back = wick({"tokenize", "--model", model_, "--decode"}, ids.out);
  EXPECT_EQ(back.code, 0);
  EXPECT_EQ(back.out, text);
  EXPECT_EQ(wick({"tokenize", "--model", model_, "--decode", "72", "105"}).out, "Hi");
  EXPECT_EQ(wick({"tokenize", "--model", model_, "--decode", "--no-special", "[256, 72]"}).out,
            "H");
  CliResult far = wick({"tokenize", "--model", model_, "--decode", "999"});
  EXPECT_EQ(far.code, 1);
  EXPECT_NE(far.err.find("999"), std::string::npos);
  EXPECT_EQ(wick({"tokenize", "--model", model_, "--decode", "seven"}).code, 1);
}

TEST_F(Text, TemplateByItself) {
  std::string source = folder_.write(
      "t.jinja",
      "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}\n"
      "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{{ strftime_now('%d %b %Y') }}"
      "{% if add_generation_prompt %}>{% endif %}{{ mood }}");
  std::string messages = folder_.write(
      "m.json", R"([{"role": "user", "content": " hé "}, {"role": "assistant", "content": "x"}])");
  std::string tools = folder_.write("tools.json", R"([{"name": "f", "b": [1, 2.5]}])");
  CliResult r = wick({"template", "--template", source, "--messages", messages, "--bos", "<s>",
                      "--eos", "</s>", "--date", "2026-01-02", "--add-generation-prompt", "--tools",
                      tools, "--chat-template-config", R"({"mood": "glad"})"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out,
            "<s>[user] hé</s>\n[assistant] x</s>\n"
            "[{\"name\": \"f\", \"b\": [1, 2.5]}]02 Jan 2026>glad");
  EXPECT_EQ(r.err, "");
  CliResult piped =
      wick({"template", "--template", source, "--messages", "-", "--date", "2026-01-02"},
           "[{\"role\": \"user\", \"content\": \"a\"}]");
  EXPECT_EQ(piped.out, "[user] a\n02 Jan 2026");
  piped =
      wick({"template", "--template", source, "--messages", "/dev/stdin", "--date", "2026-01-02"},
           "[{\"role\": \"user\", \"content\": \"b\"}]");
  EXPECT_EQ(piped.out, "[user] b\n02 Jan 2026") << piped.err;
}

TEST_F(Text, DataFromAPipe) {
  const CliResult r = wick({"data", "--model", model_, "--data", "/dev/stdin", "--json"},
                           "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.lines().front()["rows"], 2) << r.out;
}

TEST_F(Text, TemplateOfTheModel) {
  std::string messages = folder_.write(
      "m.json", R"([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])");
  CliResult r = wick({"template", "--model", model_, "--messages", messages});
  EXPECT_EQ(r.out, "<s><|system|>s</s><|user|>u</s>") << r.err;
  r = wick({"template", "--model", model_, "--messages", messages, "--add-generation-prompt",
            "--bos", "!"});
  EXPECT_EQ(r.out, "!<|system|>s</s><|user|>u</s><|assistant|>");
}

TEST_F(Text, TemplateThatIsWrong) {
  std::string messages = folder_.write("m.json", R"([{"role": "user", "content": "u"}])");
  std::string broken = folder_.write("broken.jinja", "a\n{% if %}");
  CliResult r = wick({"template", "--template", broken, "--messages", messages});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("broken.jinja"), std::string::npos) << r.err;
  std::string raising = folder_.write("r.jinja", "{{ raise_exception('roles must alternate') }}");
  r = wick({"template", "--template", raising, "--messages", messages});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("roles must alternate"), std::string::npos) << r.err;
  std::string endless = folder_.write("e.jinja", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
  EXPECT_EQ(wick({"template", "--template", endless, "--messages", messages}).code, 1);
  std::string not_a_list = folder_.write("n.json", "{\"role\": 1}");
  r = wick({"template", "--template", raising, "--messages", not_a_list});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("wanted a list of messages"), std::string::npos) << r.err;
}

// A file's words in an error do not drive the terminal.
TEST_F(Text, ControlCharactersInErrors) {
  const std::string messages =
      folder_.write("m.json", R"([{"role": "user", "content": "\u001b[2J\u009b2J"}])");
  const std::string raising =
      folder_.write("r.jinja", "{{ raise_exception(messages[0]['content']) }}");
  const CliResult r = wick({"template", "--template", raising, "--messages", messages});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("\\x1b[2J\\u009b2J"), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find('\x1b'), std::string::npos) << r.err;
  const CliResult chat = wick({"chat", "--model", model_}, "/\x1b[2J\n");
  EXPECT_NE(chat.err.find("there is no /\\x1b[2J"), std::string::npos) << chat.err;
}

// Into a file or a pipe an answer goes byte by byte as the model wrote it.
TEST_F(Text, AnswersAreNotChangedInAPipe) {
  using namespace std::string_literals;
  const std::string file = folder_.write("p.jsonl", "{\"text\": \"x\"}\n");
  auto answer = [&](std::vector<std::string> words, const std::string& bias) {
    words.insert(words.end(), {"--model", model_, "-m", "2", "--logit-bias", bias});
    const CliResult r = wick(words, "x\n");
    EXPECT_EQ(r.code, 0) << r.err;
    return r.out;
  };
  EXPECT_EQ(answer({"generate", "--prompts", file}, "0=1000"), "\0\0\n"s);
  EXPECT_EQ(answer({"generate", "--prompts", file}, "27=1000"), "\x1b\x1b\n");
  EXPECT_EQ(answer({"generate", "-p", "x"}, "27=1000"), "\x1b\x1b\n");
  EXPECT_EQ(answer({"chat"}, "27=1000"), "\x1b\x1b\n");
}

TEST_F(Text, CtrlCEndsAChatWithAFile) {
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += "x\n";
  bool sent = false;
  const CliResult r = wick({"chat", "--model", model_, "-m", "200", "--ignore-eos"}, lines,
                           [&](const std::string&, int pid) {
                             if (!std::exchange(sent, true)) kill(pid, SIGINT);
                           });
  EXPECT_EQ(r.code, 130) << r.err;
}

TEST_F(Text, DataSummaryAndRow) {
  std::string data = folder_.path("data");
  write_tiny_data(data);
  CliResult r = wick({"data", "--model", model_, "--data", data});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("rows     12"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("no problems found"), std::string::npos) << r.out;
  Json summary = wick({"data", "--model", model_, "--data", data, "--json"}).event("data");
  EXPECT_EQ(summary["rows"], 12);
  EXPECT_EQ(summary["formats"]["chat"], 12);
  EXPECT_EQ(summary["trained_tokens"], 12 * 3);  // two letters and the stop token

  CliResult row = wick({"data", "--model", model_, "--data", data, "--row", "0", "--quiet"});
  EXPECT_EQ(row.out, "<s>|<|user|>|s|a|y| |a|</s>|<|assistant|>|[a][a][</s>]\n") << row.err;
  CliResult color =
      wick({"data", "--model", model_, "--data", data, "--row", "0", "--color", "always"});
  EXPECT_NE(color.out.find("\x1b["), std::string::npos);
  CliResult json = wick({"data", "--model", model_, "--data", data, "--row", "0", "--json"});
  ASSERT_EQ(json.lines().size(), 1u);
  EXPECT_EQ(json.lines()[0]["tokens"].size(), 12u);
  EXPECT_EQ(json.lines()[0]["tokens"][11]["trained"], true);
  EXPECT_EQ(json.lines()[0]["tokens"][8]["trained"], false);
  EXPECT_EQ(wick({"data", "--model", model_, "--data", data, "--row", "99"}).code, 2);
  EXPECT_EQ(wick({"data", "--model", model_, "--data", data, "--row", "-1"}).code, 2);
}

TEST_F(Text, DataWithProblems) {
  std::string file =
      folder_.write("d/train.jsonl", "{\"text\": \"a long row of text\"}\n{\"text\": \"short\"}\n");
  CliResult r = wick(
      {"data", "--model", model_, "--data", folder_.path("d"), "--max-seq-length", "8", "--json"});
  EXPECT_EQ(r.event("summary")["findings"], 1) << r.out;
  EXPECT_EQ(r.event("finding")["line"], 1);
  EXPECT_EQ(r.event("data")["rows_over_limit"], 1);
  folder_.write("d/train.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
  CliResult broken = wick({"data", "--model", model_, "--data", file});
  EXPECT_EQ(broken.code, 0);
  EXPECT_NE(broken.out.find("train.jsonl:2"), std::string::npos) << broken.out;
  folder_.write("d/train.jsonl", "");
  CliResult empty = wick({"data", "--model", model_, "--data", file, "--strict"});
  EXPECT_EQ(empty.code, 1);
  EXPECT_NE(empty.out.find("train.jsonl"), std::string::npos) << empty.out;
}

TEST(Devices, NamesAtLeastTheCpu) {
  CliResult r = wick({"devices"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("cpu"), std::string::npos);
  CliResult json = wick({"devices", "--json"});
  ASSERT_FALSE(json.lines().empty());
  for (const Json& device : json.lines()) {
    EXPECT_TRUE(device["name"].is_string());
    EXPECT_TRUE(device["available"].get<bool>() || !device["why_not"].get<std::string>().empty());
  }
}

// Prompts are read as the rows of a data set are.
TEST_F(Text, PromptsWithToolCallsAsChatApisAndTablesWriteThem) {
  folder_.write("model/chat_template.jinja",
                "{% for m in messages %}{% if m.tool_calls is defined %}"
                "{{ m.tool_calls[0].function.arguments.x }}{% else %}{{ m.content }}{% endif %}"
                "{% endfor %}{{ 'none' if tools is none else tools[0].name }}");
  auto prompt = [](const std::string& arguments, const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "ab", "tool_calls": )" + more +
           R"(}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", )"
           R"("arguments": )" +
           arguments + R"(}}]}, {"role": "tool", "content": "c"}])";
  };
  const std::string file = folder_.write(
      "p.jsonl", prompt(R"({"x": "defg"})", "null") + R"(, "tools": [{"name": "tool"}]})" + "\n" +
                     prompt(R"("{\"x\": \"defg\"}")", "[]") +
                     R"(, "tools": "[{\"name\": \"tool\"}]"})" + "\n" +
                     prompt(R"("{\"x\": \"defg\"}")", "null") + R"(, "tools": []})" + "\n");
  const CliResult r = wick({"generate", "--model", model_, "--prompts", file, "-m", "1", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const Json& line : r.lines()) EXPECT_EQ(line["prompt_tokens"], 11) << line;
}

// A conversation that was trained without a further system message is answered without one.
TEST_F(Text, WhatASystemPromptIsAddedTo) {
  auto generate = [&](const std::string& messages, std::vector<std::string> more) {
    const std::string file = folder_.write("p.jsonl", "{\"messages\": " + messages + "}\n");
    more.insert(more.begin(),
                {"generate", "--model", model_, "--prompts", file, "-m", "1", "--json"});
    const CliResult r = wick(more);
    EXPECT_EQ(r.code, 0) << r.err;
    return r;
  };
  const std::string user = R"({"role": "user", "content": "x"})";
  const std::vector<std::string> system = {"--system-prompt", "be nice"};
  auto tokens = [](const CliResult& r) { return r.lines().at(0)["prompt_tokens"].get<int>(); };
  EXPECT_GT(tokens(generate("[" + user + "]", system)), tokens(generate("[" + user + "]", {})));
  const std::string developer = R"([{"role": "developer", "content": "y"}, )" + user + "]";
  EXPECT_EQ(tokens(generate(developer, system)), tokens(generate(developer, {})));

  const std::string settings = model_ + "/tokenizer_config.json";
  Json config = read_json(settings);
  config["chat_template"] = "{{ messages[-1]['content'] }}";
  folder_.write("model/tokenizer_config.json", dump_json(config));
  EXPECT_NE(generate("[" + user + "]", system).err.find("leaves --system-prompt out"),
            std::string::npos);
  // Once for each message that is set.
  auto warnings = [&](const std::string& lines) {
    const CliResult r =
        wick({"chat", "--model", model_, "-m", "1", "--system-prompt", "be nice"}, lines);
    EXPECT_EQ(r.code, 0) << r.err;
    const std::string words = "leaves the system message out";
    int count = 0;
    for (size_t at = 0; (at = r.err.find(words, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(warnings("x\ny\n"), 1);
  EXPECT_EQ(warnings("x\n/system be kind\nx\n"), 2);
  EXPECT_EQ(warnings("/system\nx\n"), 0);
  config["chat_template"] = "{% for m in messages %}{{ m['content'] | trim }}{% endfor %}";
  folder_.write("model/tokenizer_config.json", dump_json(config));
  EXPECT_EQ(warnings("x\n/system  be kind \nx\n"), 0);
  const CliResult plain = wick({"generate", "--model", model_, "-p", "x", "--ignore-chat-template",
                                "--chat-template-config", "{\"a\": 1}"});
  EXPECT_EQ(plain.code, 2);
  EXPECT_NE(plain.err.find("--chat-template-config needs a chat template"), std::string::npos);
}

TEST_F(Text, ModelsThatAreNotThere) {
  CliResult r = wick({"tokenize", "--model", folder_.path("none")}, "x");
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(r.err.starts_with("wick tokenize: ")) << r.err;
  EXPECT_NE(r.err.find("none"), std::string::npos);
  CliResult device = wick({"generate", "--model", model_, "-p", "x", "--device", "quantum"});
  EXPECT_EQ(device.code, 1);
  EXPECT_NE(device.err.find("quantum"), std::string::npos);
}

}  // namespace
}  // namespace wick::test
