// SPDX-License-Identifier: Apache-2.0
// wick data on a data set with each defect planted once.
#include <gtest/gtest.h>

#include <sstream>

#include "cli/data_rows.h"

namespace wick::test {
namespace {

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}{% if m['role'] != 'system' %}"
    "{% if 'RAISE' in m['content'] %}{{ raise_exception('no such row') }}{% endif %}"
    "<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if 'NOSTOP' not in m['content'] %}{{ eos_token }}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

std::string messages(const std::vector<std::string>& turns) {
  std::string list;
  for (const std::string& t : turns) list += (list.empty() ? "" : ", ") + t;
  return "{\"messages\": [" + list + "]}";
}

class Data : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(model_);
    const std::string settings = model_ + "/tokenizer_config.json";
    Json config = read_json(settings);
    config["chat_template"] = kTemplate;
    folder_.write("model/tokenizer_config.json", dump_json(config));
  }
  TempFolder folder_;
  std::string model_ = folder_.path("model");
};

// Training cuts rows at the model's context, so that is the limit everywhere.
TEST_F(Data, TheContextIsALimitToo) {
  const std::string file =
      folder_.write("long/train.jsonl", "{\"text\": \"" + std::string(300, 'a') + "\"}\n");
  const CliResult r = wick({"data", "--model", model_, "--data", file, "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(findings_of(r).contains({"over_limit", "train.jsonl", 1})) << r.out;
  const CliResult eval = wick({"eval", "--model", model_, "--data", file, "--json"});
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_EQ(eval.event("eval")["tokens"], 255);
}

// Lengths and masks are a matter of tokenizer, config and template.
TEST_F(Data, NeedsNoWeights) {
  const std::string file = folder_.write("one/train.jsonl", chat("a", "b") + "\n");
  const CliResult with = wick({"data", "--model", model_, "--data", file, "--json"});
  std::filesystem::remove(model_ + "/model.safetensors");
  const CliResult without = wick({"data", "--model", model_, "--data", file, "--json"});
  ASSERT_EQ(without.code, 0) << without.err;
  EXPECT_EQ(without.event("data"), with.event("data"));
  EXPECT_TRUE(with.event("summary").contains("training"));
  EXPECT_FALSE(without.event("summary").contains("training"));
  EXPECT_NE(without.err.find("weights"), std::string::npos) << without.err;
  std::filesystem::remove(model_ + "/config.json");
  EXPECT_EQ(wick({"data", "--model", model_, "--data", file}).code, 1);
}

TEST_F(Data, EveryPlantedDefectIsNamed) {
  std::vector<std::string> rows;
  std::set<Finding> wanted;
  auto plant = [&](const char* kind, const std::string& row) {
    rows.push_back(row);
    wanted.insert({kind, "train.jsonl", static_cast<int64_t>(rows.size())});
  };
  rows.push_back(chat("q1", "a1"));
  plant("blank_line", "");
  plant("unreadable", "{\"messages\": [");
  plant("not_utf8", "{\"text\": \"caf\xe9\"}");
  plant("replacement_character", chat("lost \xEF\xBF\xBD", "b"));
  plant("control_character", chat("nul \\u0000", "c"));
  plant("mojibake", chat("caf\xC3\x83\xC2\xA9", "d"));
  plant("wrong_type", "{\"messages\": 7}");
  plant("wrong_type", "{\"mesages\": []}");
  plant("mixed_formats", "{\"text\": \"plain\"}");
  plant("role_order", messages({turn("user", "e"), turn("user", "f"), turn("assistant", "g")}));
  plant("unknown_role", messages({turn("user", "h"), turn("bot", "i"), turn("assistant", "j")}));
  plant("system_dropped",
        messages({turn("system", "be nice"), turn("user", "k"), turn("assistant", "l")}));
  plant("template_error", chat("RAISE", "m"));
  plant("unanswered", messages({turn("user", "n"), turn("assistant", "o"), turn("user", "p")}));
  plant("empty_answer", chat("r", ""));
  plant("no_trained_token", messages({turn("user", "s")}));
  plant("no_stop_token", chat("t", "NOSTOP"));
  plant("special_token", chat("z", "ends </s> early"));
  plant("over_limit", chat("u", std::string(200, 'v')));
  plant("duplicate", chat("q1", "a1"));
  plant("near_duplicate", chat("Q1", " a1 "));
  std::string text;
  for (const std::string& row : rows) text += row + "\n";
  folder_.write("data/train.jsonl", text);
  folder_.write("data/train.csv", "text\nnot read\n");
  wanted.insert({"ignored_file", "train.jsonl", 0});
  folder_.write("data/validation.jsonl",
                chat("q1", "a1") + "\n" + chat("q1", "A1") + "\n" + chat("new", "w") + "\n");
  wanted.insert({"overlap", "validation.jsonl", 1});
  wanted.insert({"near_overlap", "validation.jsonl", 2});
  folder_.write("data/test.csv", "prompt,completion\nonly one field\n\"x\",\"y\"\n");
  wanted.insert({"unreadable", "test.csv", 2});

  const std::vector<std::string> words = {
      "data", "--model", model_, "--data", folder_.path("data"), "--max-seq-length", "100"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return wick(more);
  };
  CliResult r = with({"--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const std::set<Finding> found = findings_of(r);
  for (const auto& [kind, file, line] : wanted)
    EXPECT_TRUE(found.contains({kind, file, line})) << kind << " " << file << ":" << line;
  // A row may have a second fault that follows from the first, and nothing else.
  std::set<Finding> more = {{"unanswered", "train.jsonl", 17}};
  for (const Finding& f : found)
    EXPECT_TRUE(wanted.contains(f) || more.contains(f))
        << std::get<0>(f) << " " << std::get<1>(f) << ":" << std::get<2>(f);
  const Json summary = r.event("summary");
  EXPECT_EQ(summary["findings"], found.size());
  EXPECT_TRUE(summary["training"].contains("refused")) << summary;

  EXPECT_EQ(with({"--strict", "--quiet"}).code, 1);
  CliResult shown = with({"--color", "never"});
  EXPECT_NE(shown.out.find("train.jsonl:3: "), std::string::npos) << shown.out;

  CliResult fixed = with({"--fix", folder_.path("clean"), "--json"});
  ASSERT_EQ(fixed.code, 0) << fixed.err;
  EXPECT_FALSE(fixed.event("summary")["fixes"].empty());
  CliResult again = wick({"data", "--model", model_, "--data", folder_.path("clean"), "--json",
                          "--max-seq-length", "100"});
  ASSERT_EQ(again.code, 0) << again.err;
  std::set<std::string> left;
  for (const Finding& f : findings_of(again)) left.insert(std::get<0>(f));
  for (const char* gone :
       {"blank_line", "unreadable", "not_utf8", "control_character", "mojibake", "wrong_type",
        "template_error", "no_trained_token", "duplicate", "overlap", "ignored_file"})
    EXPECT_FALSE(left.contains(gone)) << gone;
  EXPECT_TRUE(again.event("summary")["training"].contains("updates")) << again.out;
  EXPECT_EQ(with({"--fix", folder_.path("data")}).code, 1);
}

TEST_F(Data, QuestionsOfTheTestSplitAreCheckedAndKept) {
  folder_.write("data/train.jsonl", chat("q", "a") + "\n");
  const std::string good = R"({"question": "q", "choices": ["a", "b"], "answer": 1})";
  folder_.write("data/test.jsonl", good + "\n");
  const std::vector<std::string> words = {"data", "--model", model_, "--data",
                                          folder_.path("data")};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return wick(more);
  };
  const CliResult r = with({"--strict", "--json", "--fix", folder_.path("clean")});
  EXPECT_EQ(r.code, 0) << r.err << r.out;
  EXPECT_EQ(wick({"eval", "--model", model_, "--data", folder_.path("clean"), "--json"})
                .event("eval")["rows"],
            1);
  folder_.write("data/test.jsonl", good + "\n" + R"({"question": "q", "choices": ["a"]})" + "\n");
  EXPECT_TRUE(findings_of(with({"--json"})).contains({"wrong_type", "test.jsonl", 2}));
}

// What programs write without a warning.
TEST_F(Data, DefectsOfOtherProgramsAreNamed) {
  std::vector<std::string> rows;
  std::set<Finding> wanted;
  auto plant = [&](const char* kind, const std::string& row) {
    rows.push_back(row);
    wanted.insert({kind, "train.jsonl", static_cast<int64_t>(rows.size())});
  };
  const std::string call =
      R"({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]})";
  plant("repeated_key", R"({"text": "a", "text": "b"})");
  plant("repeated_key", R"({"messages": [{"role": "user", "content": "a", "content": "b"}, )" +
                            turn("assistant", "c") + "]}");
  plant("unreadable", R"({"text": "d", "score": NaN})");
  plant("unreadable", R"({"text": "half a pair \ud83d"})");
  plant("ignored_member", R"({"text": "e", "images": ["a.png"]})");
  plant("ignored_member",
        messages({turn("user", "f"), R"({"role": "assistant", "content": "g", "weight": 0.5})"}));
  plant("empty_answer", chat("h", "\xE2\x80\x8B\xC2\xA0"));
  plant("role_order", messages({turn("user", "i"), call,
                                R"({"role": "tool", "tool_call_id": "2", "content": "j"})",
                                turn("assistant", "k")}));
  plant("wrong_type", R"({"prompt": null, "completion": "l"})");
  plant("wrong_type", R"([{"text": "m"}])");
  std::string text;
  for (const std::string& row : rows) text += row + "\n";
  const std::string file = folder_.write("odd/train.jsonl", text);
  const CliResult r = wick({"data", "--model", model_, "--data", file, "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const std::set<Finding> found = findings_of(r);
  for (const auto& [kind, name, line] : wanted)
    EXPECT_TRUE(found.contains({kind, name, line})) << kind << " " << name << ":" << line;
  for (const char* word : {"write null", R"(\"prompt\" is null)", "named .json"})
    EXPECT_NE(r.out.find(word), std::string::npos) << word;

  auto refused = [&](const std::string& bytes) {
    const CliResult t =
        wick({"train", "--model", model_, "--data", folder_.write("bad/train.jsonl", bytes),
              "--adapter-path", folder_.path("none")});
    EXPECT_EQ(t.code, 1);
    return t.err;
  };
  EXPECT_NE(refused(chat("a", "b") + "\r" + chat("c", "d") + "\r").find("line feeds"),
            std::string::npos);
  EXPECT_NE(refused("{\n\"text\": \"a\"\n}\n").find("one whole object per line"),
            std::string::npos);
  EXPECT_NE(refused("{\"text\": 3}\n").find("--fix"), std::string::npos);
}

// A list in a field of a table, and contents in parts, are checked as they are read.
TEST_F(Data, TablesAndPartsAreCheckedLikeOtherRows) {
  const std::string table =
      folder_.write("table/train.csv",
                    "messages\n"
                    "\"[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"a\"\"}, "
                    "{\"\"role\"\": \"\"assistant\"\", \"\"content\"\": \"\" \"\"}]\"\n"
                    "\"[{\"\"role\"\": \"\"human\"\", \"\"content\"\": \"\"b\"\"}, "
                    "{\"\"role\"\": \"\"assistant\"\", \"\"content\"\": \"\"c\"\"}]\"\n");
  std::set<Finding> found =
      findings_of(wick({"data", "--model", model_, "--data", table, "--json"}));
  EXPECT_TRUE(found.contains({"empty_answer", "train.csv", 2}));
  EXPECT_TRUE(found.contains({"unknown_role", "train.csv", 3}));

  auto part = [](const std::string& role, const std::string& text) {
    return "{\"role\": \"" + role + "\", \"content\": [{\"type\": \"text\", \"text\": \"" + text +
           "\"}]}";
  };
  const std::string parts = folder_.write(
      "parts/train.jsonl",
      messages({part("user", "a"), "{\"role\": \"assistant\", \"content\": []}"}) + "\n" +
          messages({part("system", "Be kind"), part("user", "b"), part("assistant", "c")}) + "\n" +
          messages({part("user", "d"), part("assistant", "e </s> f")}) + "\n");
  found = findings_of(wick({"data", "--model", model_, "--data", parts, "--json"}));
  EXPECT_TRUE(found.contains({"empty_answer", "train.jsonl", 1}));
  EXPECT_TRUE(found.contains({"system_dropped", "train.jsonl", 2}));
  EXPECT_TRUE(found.contains({"special_token", "train.jsonl", 3}));
}

// What other programs make a part of the prompt, or leave untrained, and wick does not read.
TEST_F(Data, MembersThatAreNotReadAreNamed) {
  const std::string user = turn("user", "a");
  const std::string file = folder_.write(
      "rest/train.jsonl",
      R"({"prompt": "a", "input": "b", "completion": "c"})"
      "\n"
      R"({"prompt": "about b: a", "input": "b", "completion": "d"})"
      "\n"
      R"({"prompt": "a", "system": "Be kind", "completion": "e"})"
      "\n"
      R"({"messages": [)" +
          user + R"(, {"role": "assistant", "content": "f", "train": false}]})" + "\n" +
          R"({"messages": [)" + user +
          R"(, {"role": "assistant", "content": "g", "function_call": {"name": "h"}}]})" + "\n" +
          R"({"messages": [)" + user +
          R"(, {"role": "assistant", "content": "i", "reasoning_content": "hm"}]})" + "\n");
  const CliResult r = wick({"data", "--model", model_, "--data", file, "--json"});
  const std::set<Finding> expected = {
      {"ignored_member", "train.jsonl", 1},   {"ignored_member", "train.jsonl", 3},
      {"ignored_member", "train.jsonl", 4},   {"ignored_member", "train.jsonl", 5},
      {"template_problem", "train.jsonl", 6}, {"mixed_formats", "train.jsonl", 4},
      {"mixed_formats", "train.jsonl", 5},    {"mixed_formats", "train.jsonl", 6}};
  EXPECT_EQ(findings_of(r), expected) << r.out;
}

// Not only by wick data: a flag that does nothing, or answers learned without their reasoning.
TEST_F(Data, WhatTheTemplateLeavesOutIsNamedInTraining) {
  const std::string plain = chat("a", "b") + "\n";
  const std::string thought = messages({turn("user", "a"),
                                        "{\"role\": \"assistant\", \"content\": \"b\", "
                                        "\"reasoning_content\": \"since x\"}"}) +
                              "\n";
  const std::string system =
      messages({turn("system", "be nice"), turn("user", "a"), turn("assistant", "b")}) + "\n";
  auto train = [&](const std::string& rows, std::vector<std::string> more = {}) {
    const std::string file = folder_.write("rows.jsonl", rows);
    more.insert(more.begin(), {"train", "--model", model_, "--data", file, "--adapter-path",
                               folder_.path("out"), "--iters", "1"});
    const CliResult r = wick(more);
    EXPECT_EQ(r.code, 0) << r.err;
    std::string said;
    std::istringstream lines(r.out);
    for (std::string line; std::getline(lines, line);)
      if (line.find("the chat template") != std::string::npos)
        said += line.substr(line.find("the chat template")) + "\n";
    return said;
  };
  EXPECT_EQ(train(plain), "");
  EXPECT_EQ(train(thought + thought),
            "the chat template does not write an answer's reasoning_content, so it is not "
            "learned\n");
  EXPECT_EQ(train(system + system), "the chat template leaves system messages out\n");
  EXPECT_EQ(train(plain, {"--system-prompt", "be nice"}),
            "the chat template leaves system messages out, that of --system-prompt too\n");
  const CliResult r = wick({"data", "--model", model_, "--data", folder_.path("rows.jsonl"),
                            "--system-prompt", "be nice", "--json"});
  EXPECT_EQ(findings_of(r), (std::set<Finding>{{"template_problem", "rows.jsonl", 0}})) << r.out;
}

// Templates of models that think cut an answer at </think>, in the turn that is learned too.
TEST_F(Data, ThoughtsInAnAnswerThatTheTemplateCutsAreNamed) {
  const std::string answer = "<think>\\nsince x\\n</think>\\n\\nb";
  const std::string file = folder_.write(
      "rows.jsonl", messages({turn("user", "a"), turn("assistant", answer)}) +
                        "\n{\"prompt\": \"c\", \"completion\": \"" + answer + "\"}\n" +
                        messages({turn("user", "d"), turn("assistant", "<think></think>b")}) +
                        "\n");
  auto findings = [&] {
    std::set<Finding> found =
        findings_of(wick({"data", "--model", model_, "--data", file, "--json", "--no-estimate"}));
    found.erase({"mixed_formats", "rows.jsonl", 2});
    return found;
  };
  EXPECT_EQ(findings(), std::set<Finding>());
  Json config = read_json(model_ + "/tokenizer_config.json");
  const std::string written = "{{ m['content'] }}", whole = kTemplate;
  const size_t at = whole.find(written);
  config["chat_template"] = whole.substr(0, at) + "{{ m['content'].split('</think>')[-1] }}" +
                            whole.substr(at + written.size());
  folder_.write("model/tokenizer_config.json", dump_json(config));
  EXPECT_EQ(findings(), (std::set<Finding>{{"template_problem", "rows.jsonl", 0},
                                           {"template_problem", "rows.jsonl", 1}}));
  const CliResult trained = wick({"train", "--model", model_, "--data", file, "--adapter-path",
                                  folder_.path("out"), "--iters", "1"});
  EXPECT_NE(trained.out.find("content up to </think>, so it is not learned"), std::string::npos)
      << trained.out;
}

// As chat APIs mark turns that are context and no example.
TEST_F(Data, AWeightOfZeroIsNotTrained) {
  auto trained = [&](const char* weight) {
    const std::string file = folder_.write(
        "weights/train.jsonl",
        messages(
            {turn("user", "a"),
             std::string(R"({"role": "assistant", "content": "bbb", "weight": )") + weight + "}",
             turn("user", "c"), turn("assistant", "dd")}) +
            "\n");
    const CliResult r = wick({"data", "--model", model_, "--data", file, "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.event("data")["trained_tokens"].get<int64_t>();
  };
  EXPECT_EQ(trained("1") - trained("0"), 4);  // three letters and the stop token
}

// Rows of the same tokens of which others are trained: a cleaned copy loses none of them.
TEST_F(Data, SameTokensWithAnotherLessonAreNoDuplicates) {
  const std::string silent = R"({"role": "assistant", "content": "one", "weight": 0})";
  const std::string both = messages(
      {turn("user", "a"), turn("assistant", "one"), turn("user", "b"), turn("assistant", "two")});
  const std::string second =
      messages({turn("user", "a"), silent, turn("user", "b"), turn("assistant", "two")});
  const std::string none = messages({turn("user", "a"), silent});
  const std::string file =
      folder_.write("lessons/train.jsonl", none + "\n" + chat("a", "one") + "\n" + both + "\n" +
                                               second + "\n" + second + "\n");
  CliResult r =
      wick({"data", "--model", model_, "--data", file, "--json", "--fix", folder_.path("fixed")});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(findings_of(r), (std::set<Finding>{{"no_trained_token", "train.jsonl", 1},
                                               {"duplicate", "train.jsonl", 5}}))
      << r.out;
  EXPECT_EQ(r.event("data")["rows_written"], 3);
  const std::string labels =
      folder_.write("labels.jsonl",
                    "{\"prompt\": \"p\", \"completion\": \"c\", \"label\": true}\n"
                    "{\"prompt\": \"p\", \"completion\": \"c\", \"label\": false}\n");
  EXPECT_EQ(wick({"data", "--model", model_, "--data", labels, "--strict"}).code, 0);
}

TEST_F(Data, CleanDataIsStrictlyFine) {
  folder_.write("d.csv", "prompt,completion\n\"one, two\",three\nfour,\"fi\nve\"\n");
  CliResult r = wick({"data", "--model", model_, "--data", folder_.path("d.csv"), "--strict",
                      "--json", "--epochs", "2", "--batch-size", "1"});
  EXPECT_EQ(r.code, 0) << r.out;
  EXPECT_EQ(r.event("data")["formats"]["completions"], 2);
  EXPECT_EQ(r.event("summary")["training"]["updates"], 4);
  EXPECT_GT(r.event("summary")["training"]["packed_fill"].get<double>(), 0);
}

std::string pair(const std::string& prompt, const std::string& chosen,
                 const std::string& rejected) {
  return "{\"prompt\": \"" + prompt + "\", \"chosen\": \"" + chosen + "\", \"rejected\": \"" +
         rejected + "\"}\n";
}

TEST_F(Data, PromptsOfPreferencesBesideTheirAnswers) {
  const std::string ask = turn("user", "what"), answers = "\"chosen\": [" + ask + ", " +
                                                          turn("assistant", "a cat") +
                                                          "], \"rejected\": [" + ask + ", " +
                                                          turn("assistant", "a dog") + "]}\n";
  folder_.write("data/train.jsonl",
                "{\"messages\": [" + turn("user", "who") +
                    "], \"chosen\": \"me\", \"rejected\": \"you\"}\n{\"prompt\": \"What \", " +
                    answers);
  auto check = [&] {
    return wick({"data", "--model", model_, "--data", folder_.path("data"), "--json",
                 "--no-estimate", "--strict"});
  };
  EXPECT_EQ(check().code, 0) << check().out;
  folder_.write("data/train.jsonl", "{\"prompt\": \"why\", " + answers);
  EXPECT_EQ(findings_of(check()), (std::set<Finding>{{"ignored_member", "train.jsonl", 1}}));
}

TEST_F(Data, PreferencesHaveTwoSides) {
  const std::string long_answer(300, 'x');
  const std::string rows = pair("what", "a cat", "a dog") + pair("what", "a cat", "a cow") +
                           pair("who", "me", "") + pair("where", "here", "here") +
                           pair("long", "yes", long_answer) + pair("what", "a cat", "a dog");
  folder_.write("data/train.jsonl", rows + "no json\n");
  folder_.write("data/test.jsonl", pair("what", "a cat", "a dog cat") + pair("who", "me", "you"));
  const std::vector<std::string> source = {"--model",  model_, "--data", folder_.path("data"),
                                           "--device", "cpu"};
  auto with = [&](std::vector<std::string> words) {
    words.insert(words.begin() + 1, source.begin(), source.end());
    return wick(words);
  };
  const CliResult r = with({"data", "--json", "--max-seq-length", "100"});
  ASSERT_EQ(r.code, 0) << r.err;
  const std::set<Finding> found = findings_of(r);
  for (const auto& [kind, line] : std::vector<std::pair<std::string, int64_t>>{{"empty_answer", 3},
                                                                               {"same_answers", 4},
                                                                               {"over_limit", 5},
                                                                               {"duplicate", 6},
                                                                               {"unreadable", 7}})
    EXPECT_TRUE(found.contains({kind, "train.jsonl", line})) << kind << "\n" << r.out;
  EXPECT_FALSE(found.contains({"duplicate", "train.jsonl", 2})) << "another answer is rejected";
  for (const Json& line : r.lines())
    if (line.value("event", "") == "data" && line["split"] == "train") {
      EXPECT_EQ(line["formats"]["preference"], line["rows"]);
      EXPECT_GT(line["longest"], 300);
    }

  // A row that cannot be read does not hide the others.
  const Json shown = with({"data", "--json", "--show", "1"}).lines().front();
  EXPECT_EQ(shown["format"], "preference");
  const auto from = shown["rejected_from"].get<size_t>();
  ASSERT_LT(from, shown["tokens"].size());
  EXPECT_GT(from, 0u);
  std::string words[2];
  for (size_t i = 0; i < shown["tokens"].size(); ++i)
    if (shown["tokens"][i]["trained"].get<bool>())
      words[i < from ? 0 : 1] += shown["tokens"][i]["text"].get<std::string>();
  EXPECT_NE(words[0].find("cat"), std::string::npos) << words[0];
  EXPECT_NE(words[1].find("cow"), std::string::npos) << words[1];
  EXPECT_NE(with({"data", "--show", "1"}).out.find("train.jsonl:7"), std::string::npos);

  const Json plain = with({"eval", "--json"}).lines().back();
  EXPECT_EQ(plain["preference"]["pairs"], 2);
  EXPECT_FALSE(plain["preference"].contains("reward_margin"));
  folder_.write("pairs/train.jsonl", pair("what", "a cat", "a dog cat") + pair("who", "me", "you"));
  const CliResult trained =
      wick({"train", "--model", model_, "--data", folder_.path("pairs"), "--device", "cpu",
            "--loss", "dpo", "--adapter-path", folder_.path("dpo"), "--iters", "8", "--batch-size",
            "2", "--learning-rate", "0.02", "--quiet"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Json tuned = with({"eval", "--json", "--adapter-path", folder_.path("dpo")}).lines().back();
  EXPECT_EQ(tuned["preference"]["reward_accuracy"], 1.0);
  EXPECT_GT(tuned["preference"]["reward_margin"], 0.0);
  const Json compared =
      with({"eval", "--json", "--compare", "base", folder_.path("dpo")}).lines().back();
  EXPECT_EQ(compared["preference"]["rows"], 2);
}

}  // namespace
}  // namespace wick::test
