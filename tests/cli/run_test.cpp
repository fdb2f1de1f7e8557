// SPDX-License-Identifier: Apache-2.0
// train, generate, chat, eval, merge and plan on a tiny model.
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "cli/cli.h"

namespace wick::test {
namespace {

class Run : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(model_);
    write_tiny_data(data_);
  }
  std::vector<std::string> train_words(std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"train", "--model",        model_, "--data",
                                      data_,   "--adapter-path", out_,   "--epochs",
                                      "8",     "--batch-size",   "4",    "--learning-rate",
                                      "0.02",  "--threads",      "2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  TempFolder folder_;
  std::string model_ = folder_.path("model"), data_ = folder_.path("data"),
              out_ = folder_.path("out");
};

TEST_F(Run, TrainEventsFilesAndUse) {
  CliResult r = wick(train_words({"--json", "--steps-per-report", "4", "--save-every", "10",
                                  "--steps-per-eval", "12", "--train", "--test"}));
  ASSERT_EQ(r.code, 0) << r.err;
  Json forecast = r.event("forecast");
  int64_t sum = 0;
  for (const char* kind : {"weights", "params", "gradients", "moments", "feeds", "arena"})
    sum += forecast[kind].get<int64_t>();
  EXPECT_EQ(forecast["peak_bytes"], sum);
  EXPECT_EQ(forecast["updates"], 24);
  EXPECT_TRUE(forecast.contains("step_ms"));
  Json step = r.event("step");
  for (const char* field :
       {"step", "loss", "learning_rate", "tokens", "tokens_per_second", "peak_bytes", "grad_norm"})
    EXPECT_TRUE(step[field].is_number()) << field << step;
  EXPECT_TRUE(r.event("eval")["loss"].is_number());
  EXPECT_TRUE(r.event("saved")["path"].is_string());
  EXPECT_GT(r.event("test")["rows"], 0);
  Json done = r.event("done");
  EXPECT_EQ(done["steps"], 24);
  EXPECT_LT(done["final_loss"], done["first_loss"]);
  EXPECT_TRUE(std::filesystem::exists(out_ + "/adapter_model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(out_ + "/adapter_config.json"));
  EXPECT_TRUE(std::filesystem::exists(out_ + "/report.html"));

  // The adapter changes answers, and merged it gives the same ones.
  auto answer = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"generate", "--prompt", "say b", "--max-tokens", "6", "--quiet"});
    CliResult g = wick(words);
    EXPECT_EQ(g.code, 0) << g.err;
    return g.out;
  };
  std::string base = answer({"--model", model_});
  std::string adapted = answer({"--model", model_, "--adapter-path", out_});
  EXPECT_NE(base, adapted);
  std::string merged = folder_.path("merged"), restored = folder_.path("restored");
  CliResult m = wick(
      {"merge", "--model", model_, "--adapter-path", out_, "--save-path", merged, "--reversible"});
  ASSERT_EQ(m.code, 0) << m.err;
  EXPECT_EQ(answer({"--model", merged}), adapted);
  m = wick({"merge", "--unmerge", "--model", merged, "--save-path", restored});
  ASSERT_EQ(m.code, 0) << m.err;
  EXPECT_EQ(answer({"--model", restored}), base);

  // What eval says of the held-out rows is what training said last.
  CliResult e = wick({"eval", "--model", model_, "--adapter-path", out_, "--data", data_, "--split",
                      "valid", "--per-example", "--json"});
  ASSERT_EQ(e.code, 0) << e.err;
  EXPECT_EQ(e.lines().size(), 5u);  // four rows and the sum
  EXPECT_NEAR(e.event("eval")["loss"].get<double>(), done["valid_loss"].get<double>(), 1e-4);
  EXPECT_TRUE(e.lines()[0]["exact_match"].is_boolean());
  EXPECT_EQ(e.event("eval")["match_rows"], 4);
}

TEST_F(Run, TrainForPeople) {
  CliResult r = wick(train_words());
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* part : {"peak memory", "step ", "loss", "held out", "updates", "report.html",
                           "wick generate --model"})
    EXPECT_NE(r.out.find(part), std::string::npos) << part << "\n" << r.out;
  EXPECT_EQ(r.out.find('\r'), std::string::npos);
  EXPECT_EQ(r.out.find('\x1b'), std::string::npos);
  CliResult quiet = wick(train_words({"--quiet"}));
  EXPECT_EQ(quiet.out, "");
  EXPECT_EQ(quiet.err, "");
}

TEST_F(Run, SettingsFileAndFlagsGiveTheSameRun) {
  std::string file = folder_.write("run.yaml", "model: " + model_ + "\ndata: " + data_ +
                                                   "\nepochs: 2\nlearning_rate: 1e-3\n"
                                                   "lora_parameters: {rank: 4, scale: 2.0}\n"
                                                   "seed: 5\n");
  auto loss = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "train");
    words.insert(words.end(), {"--json", "--adapter-path", out_});
    CliResult r = wick(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.event("done")["final_loss"].get<double>();
  };
  double from_file = loss({"--config", file});
  EXPECT_EQ(from_file, loss({"--model", model_, "--data", data_, "--epochs", "2", "--learning-rate",
                             "0.001", "--rank", "4", "--alpha", "8", "--seed", "5"}));
  EXPECT_NE(from_file, loss({"--config", file, "--seed", "6"}));
  EXPECT_NE(from_file, loss({"--config", file, "--alpha", "1"}));
}

TEST_F(Run, InterruptedAndResumedEndsAsUninterrupted) {
  CliResult whole = wick(train_words({"--json", "--threads", "1", "--epochs", "100"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  std::string adapter = contents(out_ + "/adapter_model.safetensors");
  std::filesystem::remove_all(out_);

  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    bool sent = false;
    CliResult second;
    CliResult stopped = wick(
        train_words({"--json", "--threads", "1", "--epochs", "100", "--steps-per-report", "1"}), {},
        [&](const std::string& out, int pid) {
          if (sent || out.find("\"step\"") == std::string::npos) return;
          sent = true;
          kill(pid, SIGSTOP);
          second = wick(train_words());
          kill(pid, SIGCONT);
          kill(pid, signal);
        });
    EXPECT_EQ(second.code, 1) << second.err;
    EXPECT_NE(second.err.find("another run is writing"), std::string::npos) << second.err;
    ASSERT_EQ(stopped.code, 130) << signal << stopped.err;
    EXPECT_EQ(stopped.event("done")["interrupted"], true);
    EXPECT_LT(stopped.event("done")["steps"], 300);
    EXPECT_NE(stopped.err.find("--resume"), std::string::npos) << stopped.err;
    CliResult resumed =
        wick(train_words({"--json", "--threads", "1", "--epochs", "100", "--resume"}));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(resumed.event("done")["steps"], 300);
    EXPECT_EQ(contents(out_ + "/adapter_model.safetensors"), adapter);
    std::filesystem::remove_all(out_);
  }
}

TEST_F(Run, SumsUpInAsciiWhereTheLocaleIsNotUtf8) {
  ASSERT_EQ(setenv("LC_ALL", "C", 1), 0);
  const CliResult r = wick(train_words());
  unsetenv("LC_ALL");
  ASSERT_EQ(r.code, 0) << r.err;
  const size_t at = r.out.find("; loss ");
  ASSERT_NE(at, std::string::npos) << r.out;
  const std::string line = r.out.substr(at, r.out.find('\n', at) - at);  // answers may have any
  EXPECT_NE(line.find(" -> "), std::string::npos) << line;
  for (const unsigned char c : line) ASSERT_LT(c, 128) << line;
}

// As many updates as transformers' trainer makes.
TEST_F(Run, APartOfAnEpoch) {
  for (const auto& [epochs, steps] : {std::pair{"1.5", 5}, {"0.01", 1}}) {
    const CliResult r = wick(train_words({"--json", "--epochs", epochs}));
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_EQ(r.event("done")["steps"], steps);
  }
  const CliResult plan =
      wick({"plan", "--model", model_, "--data", data_, "--epochs", "1.5", "--json", "--no-try"});
  EXPECT_EQ(plan.event("forecast")["updates"], 5);
  EXPECT_EQ(wick(train_words({"--epochs", "0"})).code, 2);
}

// A kill between a checkpoint and the numbered result of its update.
TEST_F(Run, ResumingBringsANumberedResultThatWasNotWritten) {
  const std::vector<std::string> more = {"--epochs", "2", "--save-every", "3", "--save-numbered"};
  ASSERT_EQ(wick(train_words(more)).code, 0);
  const std::string last = out_ + "/step-0000006/adapter_model.safetensors",
                    before = contents(last);
  std::filesystem::remove_all(out_ + "/step-0000006");
  std::vector<std::string> again = more;
  again.push_back("--resume");
  ASSERT_EQ(wick(train_words(again)).code, 0);
  ASSERT_TRUE(std::filesystem::exists(last));
  EXPECT_TRUE(contents(last) == before);
  EXPECT_TRUE(std::filesystem::exists(out_ + "/step-0000003"));
}

// Terminal and wrapper may both say it.
TEST_F(Run, TwoSignalsAtOnceAreOne) {
  bool sent = false;
  CliResult stopped = wick(train_words({"--json", "--epochs", "2000", "--steps-per-report", "1"}),
                           {}, [&](const std::string& out, int pid) {
                             if (sent || out.find("\"step\"") == std::string::npos) return;
                             sent = true;
                             kill(pid, SIGINT);
                             usleep(1000);
                             kill(pid, SIGINT);
                             kill(pid, SIGTERM);
                           });
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_TRUE(std::filesystem::exists(out_ + "/training_state.safetensors"));
}

TEST_F(Run, AReaderThatLeavesStopsAndSaves) {
  std::string command = WICK_BINARY;
  for (const std::string& word : train_words({"--json", "--epochs", "500", "--steps-per-report=1"}))
    command += " '" + word + "'";
  auto before = signal(SIGPIPE, SIG_DFL);  // a child inherits that it is ignored
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  signal(SIGPIPE, before);
  ASSERT_NE(pipe, nullptr);
  EXPECT_EQ(fgetc(pipe), '{');
  const int status = pclose(pipe);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_FALSE(contents(out_ + "/adapter_model.safetensors").empty());
  EXPECT_FALSE(contents(out_ + "/training_state.safetensors").empty());
}

TEST_F(Run, PeakMemoryIsItsOwn) {
  const std::vector<char> ours(size_t{400} << 20, 1);  // not the process that starts it
  CliResult r = wick(train_words({"--json", "--epochs", "1"}));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_LT(r.event("done")["peak_bytes"], ours.size() / 2);
}

TEST_F(Run, PlanSaysWhatTrainWillTake) {
  std::vector<std::string> words = train_words({"--json"});
  Json forecast = wick(words).event("forecast");
  words[0] = "plan";
  Json plan = wick(words).event("forecast");
  EXPECT_EQ(plan["peak_bytes"], forecast["peak_bytes"]);
  words.pop_back();
  CliResult people = wick(words);
  EXPECT_NE(people.out.find("peak memory"), std::string::npos);
  words.push_back("--print");
  EXPECT_GT(wick(words).out.size(), people.out.size() + 500);
  words.back() = "--memory";
  words.push_back("1kB");
  EXPECT_EQ(wick(words).code, 1);
}

TEST_F(Run, GenerateForProgramsAndPeople) {
  CliResult r = wick({"generate", "--model", model_, "--prompt", "say a", "-m", "5", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  ASSERT_EQ(r.lines().size(), 1u);
  Json g = r.lines()[0];
  EXPECT_EQ(g["prompt_tokens"], 9);
  EXPECT_EQ(g["generated_tokens"], g["tokens"].size());
  for (const char* field : {"text", "prompt_tps", "generation_tps", "first_token_ms"})
    EXPECT_TRUE(g.contains(field)) << field;
  EXPECT_TRUE(g["finish_reason"] == "length" || g["finish_reason"] == "stop");
  CliResult people = wick({"generate", "--model", model_, "--prompt", "say a", "-m", "5"});
  EXPECT_EQ(people.out, g["text"].get<std::string>() + "\n");
  EXPECT_NE(people.err.find("new token"), std::string::npos);
  CliResult piped = wick({"generate", "--model", model_, "-p", "-", "-m", "5", "-q"}, "say a");
  EXPECT_EQ(piped.out, people.out);
  EXPECT_EQ(piped.err, "");

  std::vector<std::string> sampled = {"generate",     "--model", model_,  "-p", "x",
                                      "--temp",       "1",       "-m",    "12", "-q",
                                      "--ignore-eos", "--json",  "--seed"};
  auto tokens = [&](const char* seed) {
    std::vector<std::string> words = sampled;
    words.push_back(seed);
    return wick(words).lines().at(0)["tokens"];
  };
  EXPECT_EQ(tokens("1"), tokens("1"));
  EXPECT_NE(tokens("1"), tokens("2"));

  CliResult biased = wick({"generate", "--model", model_, "-p", "x", "-m", "3", "--logit-bias",
                           "97=1000", "--quiet", "--prefill-response", "b"});
  EXPECT_EQ(biased.out, "baaa\n");
  CliResult cut = wick({"generate", "--model", model_, "-p", "x", "-m", "3", "--logit-bias",
                        "97=1000", "--quiet", "--stop", "aa"});
  EXPECT_EQ(cut.out, "\n");
  CliResult plain = wick({"generate", "--model", model_, "-p", "a\\nb", "--ignore-chat-template",
                          "--json", "-m", "1"});
  EXPECT_EQ(plain.lines().at(0)["prompt_tokens"], 4);
}

TEST_F(Run, GenerateManyInOrder) {
  std::string file = folder_.write(
      "p.jsonl",
      "{\"prompt\": \"say a\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"say b\"}]}\n"
      "{\"text\": \"say c\"}\n{\"messages\": [{\"role\": \"user\", \"content\": "
      "[{\"type\": \"text\", \"text\": \"say a\"}]}]}\n");
  CliResult r = wick({"generate", "--model", model_, "--prompts", file, "-m", "5", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  auto lines = r.lines();
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(lines[i]["index"], i);
  EXPECT_EQ(lines[0]["text"], lines[3]["text"]);
  EXPECT_EQ(lines[2]["prompt_tokens"], 6);
  CliResult one = wick({"generate", "--model", model_, "--prompt", "say b", "-m", "5", "--json"});
  EXPECT_EQ(one.lines().at(0)["text"], lines[1]["text"]);
  auto expect_wrong = [&](const std::string& row, const std::string& said) {
    folder_.write("p.jsonl", "{\"prompt\": \"a\"}\n" + row + "\n");
    CliResult wrong = wick({"generate", "--model", model_, "--prompts", file});
    EXPECT_EQ(wrong.code, 1) << row;
    EXPECT_NE(wrong.err.find("p.jsonl:2: " + said), std::string::npos) << wrong.err;
  };
  folder_.write("p.jsonl", "Hello!\nAnd you?\n");
  const CliResult words = wick({"generate", "--model", model_, "--prompts", file});
  EXPECT_EQ(words.code, 1);
  EXPECT_NE(words.err.find("such as {\"prompt\": \"Hello!\"}"), std::string::npos) << words.err;
  expect_wrong("{\"question\": \"b\"}", "has an object without prompt");
  expect_wrong("{\"messages\": []}", "messages is an empty list");
  expect_wrong("{\"prompt\": []}", "prompt is an empty list");
  expect_wrong("{\"prompt\": \"a\", \"tools\": 1}", "tools is an integer");
  expect_wrong("{\"text\": \"" + std::string(300, 'x') + "\"}", "the prompt has 301 tokens");
}

TEST_F(Run, GenerateWithTools) {
  folder_.write("model/chat_template.jinja",
                "{% if messages[0].content == 'no' %}{{ raise_exception('not so') }}{% endif %}"
                "{{ messages[0].content }}{% if tools %}{{ tools | tojson }}{% endif %}");
  std::string file = folder_.write(
      "p.jsonl",
      "{\"prompt\": \"ab\"}\n"
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"ab\"}], \"tools\": null}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}], \"tools\": [1]}\n");
  CliResult r = wick({"generate", "--model", model_, "--prompts", file, "-m", "1", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  auto lines = r.lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["prompt_tokens"], 2);
  EXPECT_EQ(lines[1]["prompt_tokens"], 2);
  EXPECT_EQ(lines[2]["prompt_tokens"], 5);
  folder_.write("p.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt\": \"no\"}\n");
  r = wick({"generate", "--model", model_, "--prompts", file});
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("p.jsonl:2: "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("not so"), std::string::npos) << r.err;
}

TEST_F(Run, ChatKeepsAndForgets) {
  std::vector<std::string> words = {"chat", "--model", model_, "--json", "-m", "8"};
  CliResult r =
      wick(words, "hello\n/reset\nhello\n\"\"\"\ntwo\nlines\n\"\"\"\na \\\nb\n/nonsense\n");
  ASSERT_EQ(r.code, 0) << r.err;
  auto turns = r.lines();
  ASSERT_EQ(turns.size(), 4u) << r.out << r.err;
  EXPECT_EQ(turns[0]["text"], turns[1]["text"]);
  EXPECT_EQ(turns[1]["turn"], 1);
  EXPECT_EQ(turns[3]["turn"], 3);
  EXPECT_NE(r.err.find("there is no /nonsense"), std::string::npos) << r.err;

  std::string many;
  for (int i = 0; i < 12; ++i) many += "thirty characters are in here.\n";
  r = wick(words, many);
  EXPECT_EQ(r.code, 0) << r.err;
  ASSERT_EQ(r.lines().size(), 12u);
  EXPECT_GT(r.lines()[11]["forgotten"], 0);
  EXPECT_LE(r.lines()[11]["prompt_tokens"].get<int>(), 256);
  EXPECT_NE(r.err.find("forgot the oldest"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("when it is full"), std::string::npos) << r.err;

  r = wick(words, std::string(300, 'x') + "\nhello\n");
  EXPECT_EQ(r.code, 1);
  EXPECT_NE(r.err.find("this message takes 30"), std::string::npos) << r.err;
  ASSERT_EQ(r.lines().size(), 1u);
  EXPECT_EQ(r.lines()[0]["text"], turns[0]["text"]);
}

// wick chat in a terminal of its own.
class Chat {
 public:
  explicit Chat(const std::string& model, const std::string& bias = "0=0") {
    child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (child_ != 0) return;
    execl(WICK_BINARY, "wick", "chat", "--model", model.c_str(), "-m", "2", "--logit-bias",
          bias.c_str(), nullptr);
    _exit(127);
  }
  ~Chat() { close(terminal_); }

  void wait_for(const std::string& text) {
    char block[1024];
    while (seen_.find(text) == std::string::npos) {
      const ssize_t got = ::read(terminal_, block, sizeof block);
      if (got <= 0) return;
      seen_.append(block, static_cast<size_t>(got));
    }
    seen_.erase(0, seen_.find(text) + text.size());
  }
  void type(const std::string& keys) {
    ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  void send(int signal) { ASSERT_EQ(::kill(child_, signal), 0); }
  // The exit code; what is left of the output stays in seen().
  int end() {
    wait_for("never");
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const std::string& seen() const { return seen_; }

 private:
  pid_t child_ = -1;
  int terminal_ = -1;
  std::string seen_;
};

TEST_F(Run, ChatInATerminal) {
  Chat chat(model_);
  chat.wait_for("> ");
  chat.type("\u6f22");  // takes two columns
  chat.wait_for("\u6f22\x1b[K\r\x1b[4C");
  chat.type("\xe9\r");  // Latin-1: the line ends all the same
  chat.wait_for("\ufffd");
  chat.wait_for("\x1b[?2004l");
  chat.wait_for("> ");
  const std::string message(90, 'x');  // more than a row has room for: all of it stays to be read
  chat.type(message + "\r");
  chat.wait_for("> " + message + "\r");
  chat.wait_for("\x1b[?2004l");
  chat.wait_for("> ");
  chat.type("\x04");
  EXPECT_EQ(chat.end(), 0);
}

TEST_F(Run, NothingThatIsPastedOrAnsweredDrivesTheTerminal) {
  using namespace std::string_literals;
  Chat chat(model_, "27=1000");  // the answer is escape characters
  chat.wait_for("> ");
  chat.type("\x1b[200~a\x07\u009b\0b\x1b[201~"s);
  chat.wait_for("a\\x07\\u009b\\x00b");
  chat.type("\r");
  chat.wait_for("\\x1b\\x1b\r\n");
  chat.wait_for("> ");
  chat.type("\x04");
  EXPECT_EQ(chat.end(), 0);
}

TEST_F(Run, ChatThatIsToldToEndLeavesTheTerminalAsItWas) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    Chat chat(model_);
    chat.wait_for("> ");
    chat.type("abc");
    chat.wait_for("abc");
    chat.send(signal);
    EXPECT_EQ(chat.end(), 0);
    EXPECT_NE(chat.seen().find("\x1b[?2004l"), std::string::npos) << chat.seen();
  }
}

TEST_F(Run, FullTrainingFromRandomWeights) {
  CliResult r = wick(train_words({"--json", "--fine-tune-type", "full", "--random-weights"}));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_LT(r.event("done")["final_loss"], r.event("done")["first_loss"]);
  EXPECT_EQ(wick({"generate", "--model", out_, "-p", "say a", "-q"}).code, 0);
  EXPECT_EQ(wick(train_words({"--random-weights"})).code, 2);
}

TEST_F(Run, BadInputIsNamed) {
  auto fails_with = [&](const std::vector<std::string>& words, const std::string& part) {
    CliResult r = wick(words);
    EXPECT_EQ(r.code, 1) << r.out << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  };
  fails_with(train_words({"--targets", "q_prj"}), "q_proj");
  fails_with(train_words({"--num-layers", "9"}), "9");
  fails_with({"generate", "--model", model_, "--adapter-path", folder_.path("none"), "-p", "x"},
             "none");
  fails_with({"generate", "--model", model_, "-p", std::string(400, 'x')}, "256");
  std::filesystem::resize_file(model_ + "/model.safetensors", 1000);
  fails_with({"generate", "--model", model_, "-p", "x"}, "model.safetensors");
}

}  // namespace
}  // namespace wick::test
