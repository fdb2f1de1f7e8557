// SPDX-License-Identifier: Apache-2.0
// Files and machines that are not what they should be: each is named in one line that says what to
// do, and nothing that was there is lost.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "cli/cli.h"
#include "cli/tensors.h"

namespace wick::test {
namespace {

class Wrong : public testing::Test {
 protected:
  Wrong() : model_(folder_.path("model")), data_(folder_.path("data")), out_(folder_.path("out")) {
    write_tiny_model(model_);
    write_tiny_data(data_);
  }
  std::vector<std::string> train(const std::string& data, const std::string& out) const {
    return {"train", "--model", model_, "--data", data, "--adapter-path", out, "--epochs", "1"};
  }
  // The last line of standard error is the complaint and has these parts.
  static void expect_failed(const CliResult& r, const std::vector<std::string>& parts) {
    EXPECT_EQ(r.code, 1) << r.out << r.err;
    for (const auto& part : parts) EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }

  TempFolder folder_;
  std::string model_, data_, out_;
};

TEST_F(Wrong, Devices) {
  auto generate = [&](const char* flag, const char* value) {
    return wick({"generate", "--model", model_, "-p", "x", flag, value});
  };
  expect_failed(generate("--cpu-isa", "scalr"),
                {"--cpu-isa scalr is not known", "did you mean scalar?", "this machine has"});
  expect_failed(generate("--cpu-isa", "quantum"), {"is not known (this machine has", "scalar"});
  // One of the two is of another kind of machine.
  for (const char* isa : {"neon", "sse4"})
    if (CliResult r = generate("--cpu-isa", isa); r.code != 0)
      expect_failed(r, {isa, "does not run on this machine"});
  expect_failed(generate("--device", "quantum"), {"--device quantum", "cpu, ref", "wick devices"});
}

TEST_F(Wrong, FilesForFoldersAndFoldersForFiles) {
  std::string file = folder_.write("some.txt", "words\n");
  expect_failed(wick({"generate", "--model", model_, "--prompts", data_}),
                {data_ + ": a folder, expected a file"});
  expect_failed(wick({"template", "--messages", data_}), {": a folder, expected a file"});
  expect_failed(wick({"generate", "--model", file, "-p", "x"}), {"some.txt: a file, expected a"});
  expect_failed(wick({"generate", "--model", folder_.path("none"), "-p", "x"}),
                {"none: no such folder; a model is a folder with config.json"});
  expect_failed(wick({"generate", "--model", data_, "-p", "x"}), {"no config.json"});
  expect_failed(wick({"generate", "--model", model_, "--adapter-path", file, "-p", "x"}),
                {"some.txt: a file; an adapter is a folder"});
  expect_failed(wick({"generate", "--model", model_, "--adapter-path", data_, "-p", "x"}),
                {"has no adapter_config.json"});
  expect_failed(wick(train(data_, file)), {"some.txt: cannot create this folder", "in the way"});
  expect_failed(wick(train(data_, file + "/x")), {"cannot create this folder", "in the way"});
  std::filesystem::create_symlink("nowhere", folder_.path("dangling"));
  expect_failed(wick(train(data_, folder_.path("dangling"))), {"a link to nothing, is in the way"});
}

TEST_F(Wrong, LinksInTheDataThatLeadNowhere) {
  const std::string valid = data_ + "/valid.jsonl";
  std::filesystem::remove(valid);
  std::filesystem::create_symlink("nowhere.jsonl", valid);
  expect_failed(wick(train(data_, out_)), {valid + ": cannot open: No such file"});
  std::filesystem::create_directory(folder_.path("loop"));
  std::filesystem::create_symlink("train.jsonl", folder_.path("loop/train.jsonl"));
  expect_failed(wick(train(folder_.path("loop"), out_)),
                {"loop/train.jsonl: cannot open: Too many levels of symbolic links"});
}

TEST_F(Wrong, ATemplateThatWasNotDownloaded) {
  std::ofstream(model_ + "/chat_template.jinja")
      << "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
  expect_failed(wick({"generate", "--model", model_, "-p", "x"}),
                {"chat_template.jinja: this is a Git LFS pointer"});
}

TEST_F(Wrong, TokenRowsBesideACopyOfTheHead) {
  std::vector<std::string> arguments = train(data_, out_);
  for (const char* more : {"--trainable-token-indices", "5", "--modules-to-save", "lm_head"})
    arguments.push_back(more);
  expect_failed(wick(arguments), {"--trainable-token-indices and an adapter of lm_head",
                                  "leave one", "merge_and_unload"});
}

// The first loss is the model's own doing: no learning rate would change it.
TEST_F(Wrong, AModelWhoseNumbersAreNotFinite) {
  const std::string file = model_ + "/model.safetensors";
  std::string bytes = contents(file);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const Json header = parse_json(bytes.substr(8, length), file);
  const float huge = 3e38f;
  for (size_t at : {0, 4, 8})
    std::memcpy(bytes.data() + 8 + length + at +
                    header["model.norm.weight"]["data_offsets"][0].get<size_t>(),
                &huge, sizeof huge);
  std::ofstream(file, std::ios::binary) << bytes;
  const CliResult r = wick(train(data_, out_));
  expect_failed(r, {"before the first update: the held-out loss is ",
                    "nothing was trained before it", "wick eval"});
  EXPECT_EQ(r.err.find("--learning-rate"), std::string::npos) << r.err;
  for (const char* form : {"--json", "--quiet"}) {
    const CliResult e = wick({"eval", "--model", model_, "--data", data_, form});
    expect_failed(e, {"test.jsonl:1: the loss of this row is not a finite number", "--dtype f32"});
    if (form == std::string("--json")) {
      EXPECT_TRUE(e.event("eval")["loss"].is_null()) << e.out;
    }
  }
  folder_.write("choices.jsonl", R"({"question": "a?", "choices": ["b", "c"], "answer": 0})"
                                 "\n");
  expect_failed(wick({"eval", "--model", model_, "--data", folder_.path("choices.jsonl")}),
                {"choices.jsonl:1: the loss of this row is not a finite number"});
  expect_failed(wick({"train", "--test", "--model", model_, "--data", data_, "--adapter-path", ""}),
                {"test.jsonl:1: the loss of this row is not a finite number"});
}

// A head of its own counts although config.json says that it is the embedding, as in transformers;
// a second copy of the embedding does not.
TEST_F(Wrong, AHeadBesideATiedEmbedding) {
  const std::string file = model_ + "/model.safetensors";
  auto loss = [&](const std::string& model) {
    return wick({"eval", "--model", model, "--data", data_ + "/test.jsonl", "--json"})
        .event("eval")["loss"];
  };
  const Json tied = loss(model_);
  auto add_head = [&](const std::string& to, char flipped) {
    std::filesystem::copy(model_, to, std::filesystem::copy_options::recursive);
    const std::string text = contents(file);
    write_file(to + "/model.safetensors",
               with_copy(text, text, "model.embed_tokens.weight", "lm_head.weight", flipped));
  };
  for (const char* name : {"copy", "other"})
    std::filesystem::create_directories(folder_.path(name));
  add_head(folder_.path("copy"), 0);
  add_head(folder_.path("other"), static_cast<char>(0x80));
  EXPECT_EQ(loss(folder_.path("copy")), tied);
  const Json own = loss(folder_.path("other"));
  EXPECT_NE(own, tied);
  const std::string to = folder_.path("converted");
  ASSERT_EQ(
      wick({"convert", "--model", folder_.path("other"), "--save-path", to, "--save-dtype", "f32"})
          .code,
      0);
  EXPECT_EQ(loss(to), own);
  EXPECT_EQ(parse_json(contents(to + "/config.json"), to)["tie_word_embeddings"], false);
}

// PEFT saves the table beside a pair on it, and puts it back into the model when it loads: one that
// was changed before the training is a part of what was trained.
TEST_F(Wrong, ATableBesideAnAdapterThatIsNotTheModels) {
  std::vector<std::string> words = train(data_, out_);
  words.insert(words.end(), {"--targets", "q_proj,embed_tokens"});
  ASSERT_EQ(wick(words).code, 0);
  const std::string file = out_ + "/adapter_model.safetensors", before = contents(file);
  auto loss_beside = [&](char flipped) {
    write_file(file, with_copy(before, contents(model_ + "/model.safetensors"),
                               "model.embed_tokens.weight",
                               "base_model.model.model.embed_tokens.base_layer.weight", flipped));
    return wick({"eval", "--model", model_, "--adapter-path", out_, "--data", data_ + "/test.jsonl",
                 "--json"});
  };
  const CliResult own = loss_beside(0);
  EXPECT_EQ(own.code, 0) << own.err;
  expect_failed(loss_beside(static_cast<char>(0x80)),
                {"base_layer.weight is not the model's own", "row 0"});
}

// Where the vocabulary grew, PEFT saves embedding and head with any adapter. Trained is what
// modules_to_save names.
TEST_F(Wrong, TablesThatAnAdapterOnlyBrings) {
  const std::string begun = folder_.path("begun"), file = begun + "/adapter_model.safetensors",
                    settings = begun + "/adapter_config.json";
  std::vector<std::string> words = train(data_, begun);
  words.insert(words.end(), {"--targets", "q_proj"});
  ASSERT_EQ(wick(words).code, 0);
  const std::string model = contents(model_ + "/model.safetensors"), before = contents(file);
  auto go_on = [&](char flipped) {
    std::string tensors = before;
    for (const char* module : {"model.embed_tokens", "lm_head"})
      tensors = with_copy(tensors, model, "model.embed_tokens.weight",
                          std::string("base_model.model.") + module + ".weight", flipped);
    write_file(file, tensors);
    words = train(data_, out_);
    words.insert(words.end(), {"--init-adapter", begun});
    return wick(words);
  };
  auto saved = [&](const std::string& module) {
    return tensors_of(contents(out_ + "/adapter_model.safetensors"))
        .header.contains("base_model.model." + module + ".weight");
  };
  const CliResult same = go_on(0);
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_TRUE(saved("model.layers.0.self_attn.q_proj.lora_A"));
  EXPECT_FALSE(saved("model.embed_tokens"));
  EXPECT_FALSE(saved("lm_head"));
  const CliResult other = go_on(static_cast<char>(0x80));
  expect_failed(other, {"embed_tokens.weight is not the model's own: row 0", "merge_and_unload"});
  EXPECT_EQ(wick({"generate", "--model", model_, "--adapter-path", begun, "-p", "x"}).code, 0);
  Json config = parse_json(contents(settings), settings);
  config["modules_to_save"] = {"embed_tokens"};
  write_file(settings, dump_json(config));
  ASSERT_EQ(go_on(0).code, 0);
  EXPECT_TRUE(saved("model.embed_tokens"));
  EXPECT_FALSE(saved("lm_head"));
}

// PEFT then saves a table that is trained under three names, one of them the untouched base's.
TEST_F(Wrong, TablesOfAGrownVocabulary) {
  const std::string file = out_ + "/adapter_model.safetensors",
                    settings = out_ + "/adapter_config.json";
  const std::string prefix = "base_model.model.model.embed_tokens";
  const std::string model = contents(model_ + "/model.safetensors"),
                    table = "model.embed_tokens.weight";
  auto loss = [&](const std::string& tensors) {
    write_file(file, tensors);
    const CliResult r = wick({"eval", "--model", model_, "--adapter-path", out_, "--data",
                              data_ + "/test.jsonl", "--dtype", "f32", "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? r.event("eval")["loss"] : Json();
  };
  std::vector<std::string> words = train(data_, out_);
  words.insert(words.end(), {"--targets", "q_proj", "--modules-to-save", "embed_tokens"});
  ASSERT_EQ(wick(words).code, 0);
  const std::string whole = contents(file);
  const Json trained = loss(whole);
  EXPECT_EQ(loss(with_copy(
                with_copy(whole, whole, prefix + ".weight", prefix + ".modules_to_save.weight"),
                model, table, prefix + ".original_module.weight")),
            trained);
  // Token rows, and the tied head's, which are the same.
  std::filesystem::remove_all(out_);
  words = train(data_, out_);
  words.insert(words.end(),
               {"--targets", "q_proj", "--trainable-token-indices", "97,98", "--dtype", "f32"});
  ASSERT_EQ(wick(words).code, 0);
  const std::string rows = contents(file);
  const Json of_rows = loss(rows);
  const std::string delta = ".token_adapter.trainable_tokens_delta";
  std::string grown = with_copy(rows, rows, prefix + delta, "base_model.model.lm_head" + delta);
  for (const std::string& module : {prefix, std::string("base_model.model.lm_head")})
    grown = with_copy(grown, model, table, module + ".token_adapter.base_layer.weight");
  EXPECT_EQ(loss(grown), of_rows);
  // PEFT takes the module's whole name too.
  Json config = parse_json(contents(settings), settings);
  config["trainable_token_indices"] = {{"model.embed_tokens", {97, 98}}};
  write_file(settings, dump_json(config));
  EXPECT_EQ(loss(grown), of_rows);
}

// PEFT's setting says something of tied tables only, and of adapters on them.
TEST_F(Wrong, TiedAdaptersWhereThereAreNone) {
  const std::string settings = out_ + "/adapter_config.json";
  auto run_tied = [&](const std::string& targets) {
    std::vector<std::string> words = train(data_, out_);
    words.insert(words.end(), {"--targets", targets});
    EXPECT_EQ(wick(words).code, 0);
    Json config = parse_json(contents(settings), settings);
    config["ensure_weight_tying"] = true;
    write_file(settings, dump_json(config));
    return wick({"generate", "--model", model_, "--adapter-path", out_, "-p", "x", "-m", "1"});
  };
  const CliResult blocks = run_tied("q_proj");
  EXPECT_EQ(blocks.code, 0) << blocks.err;
  expect_failed(run_tied("q_proj,lm_head"), {"ensure_weight_tying is true", "lm_head"});
}

TEST_F(Wrong, AnAdapterOfAnotherModel) {
  std::string adapter = std::string(WICK_SOURCE_DIR) + "/tests/golden/qwen2_tied/adapter";
  expect_failed(wick({"generate", "--model", model_, "--adapter-path", adapter, "-p", "x"}),
                {"adapter_model.safetensors", "is the adapter for another model?"});
}

TEST_F(Wrong, Data) {
  auto data = [&](const std::string& rows) {
    return wick(train(folder_.write("rows.jsonl", rows), out_));
  };
  expect_failed(data(""), {"rows.jsonl: the data set is empty", "one JSON object per line"});
  expect_failed(wick(train(folder_.write("rows.csv", "text\n"), out_)),
                {"rows.csv: the data set is empty", "a header, and below it a line for each row"});
  expect_failed(data("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n"),
                {"rows.jsonl", "none of the 1 rows has a trained token"});
  expect_failed(data("{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n"),
                {"rows.jsonl:2:11: not valid JSON: the text is not UTF-8 here"});
  expect_failed(data(std::string("\xff\xfe{\0", 4)), {"rows.jsonl: this is UTF-16LE", "iconv"});
  expect_failed(data("\x1f\x8b\x08\x08"), {"rows.jsonl: this is gzip; unpack it with gunzip"});
  expect_failed(data("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
                {"rows.jsonl: this is a Git LFS pointer, not the file itself: run `git lfs pull`"});
  expect_failed(data("PAR1\x15\x04"), {"rows.jsonl: this is Parquet; write JSON lines"});
  expect_failed(data("{\"txt\": \"a\"}\n"), {"rows.jsonl:1", "did you mean \"text\" by \"txt\"?"});
  std::filesystem::create_directories(folder_.path("empty"));
  expect_failed(wick(train(folder_.path("empty"), out_)), {"no train.jsonl", "it is empty"});
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(Wrong, SettingsThatTrainNothingAreMentioned) {
  for (const auto& [flag, value, said] :
       {std::tuple{"--alpha", "0", "--alpha is 0"},
        {"--bias", "all", "--bias all: the model has no such biases"}}) {
    std::vector<std::string> arguments = train(data_, out_);
    arguments.insert(arguments.end(), {flag, value});
    const CliResult r = wick(arguments);
    EXPECT_EQ(r.code, 0) << r.err;
    EXPECT_NE((r.out + r.err).find(said), std::string::npos) << r.out << r.err;
  }
}

TEST_F(Wrong, RowsOfCompletionsWantALabelForKto) {
  std::vector<std::string> arguments =
      train(folder_.write("rows.jsonl", R"({"prompt":"a","completion":"b"})"
                                        "\n"),
            out_);
  for (const char* more : {"--loss", "kto"}) arguments.push_back(more);
  expect_failed(wick(arguments),
                {"rows.jsonl:1", "kto also takes a \"label\" beside the \"comple"});
}

// Nothing is wrong with rows of another loss, and `wick data --fix` would keep them.
TEST_F(Wrong, RowsOfAnotherLossAreNoDefect) {
  const std::string pairs =
                        folder_.write("pairs.jsonl", R"({"prompt":"a","chosen":"b","rejected":"c"})"
                                                     "\n"),
                    texts = folder_.write("texts.jsonl", "{\"text\":\"a b\"}\n"),
                    broken = folder_.write("broken.jsonl", "{\"text\":\"a b\"\n");
  CliResult r = wick(train(pairs, out_));
  expect_failed(r, {"pairs.jsonl:1", "wants --loss dpo"});
  EXPECT_EQ(r.err.find("--fix"), std::string::npos) << r.err;
  std::vector<std::string> words = train(texts, out_);
  words.insert(words.end(), {"--loss", "dpo"});
  r = wick(words);
  expect_failed(r, {"texts.jsonl:1", "\"chosen\" and \"rejected\"", "leave --loss out"});
  EXPECT_EQ(r.err.find("--fix"), std::string::npos) << r.err;
  expect_failed(wick(train(broken, out_)), {"broken.jsonl:1", "--fix leaves them out"});
}

TEST_F(Wrong, PathsThatAreNotUtf8AreOnlyOdd) {
  std::string data = folder_.write("rows\xff.jsonl", "{\"text\": \"a b\"}\n");
  const std::string out = out_ + "\xfe";
  ASSERT_EQ(wick(train(data, out)).code, 0);
  std::vector<std::string> again = train(data, out);
  again.push_back("--resume");
  EXPECT_EQ(wick(again).code, 0);
  EXPECT_EQ(wick({"generate", "--model", model_, "--adapter-path", out, "-p", "a"}).code, 0);
}

// Their numbers are not given to files, which would get the words of the run.
TEST_F(Wrong, ClosedStreamsWriteIntoNoFile) {
  std::string command = WICK_BINARY;
  std::vector<std::string> words = train(data_, out_);
  for (const char* more : {"--json", "--metrics"}) words.push_back(more);
  words.push_back(folder_.path("metrics.jsonl"));
  for (const std::string& word : words) command += " '" + word + "'";
  EXPECT_NE(std::system((command + " <&- >&- 2>&-").c_str()), 0);  // it could not say anything
  std::istringstream lines(contents(folder_.path("metrics.jsonl")));
  int64_t count = 0;
  for (std::string line; std::getline(lines, line); ++count)
    EXPECT_FALSE(Json::parse(line, nullptr, false).is_discarded()) << line;
  EXPECT_GT(count, 2);
  EXPECT_EQ(wick({"generate", "--model", model_, "--adapter-path", out_, "-p", "x"}).code, 0);
}

TEST_F(Wrong, AFileLimitKeepsTheLastCheckpoint) {
  ASSERT_EQ(wick(train(data_, out_)).code, 0);
  const char* files[] = {"/adapter_model.safetensors", "/training_state.safetensors"};
  std::string before[2];
  for (int i : {0, 1}) before[i] = contents(out_ + files[i]);

  rlimit limit{}, small{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = limit;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  CliResult r = wick(train(data_, out_));
  setrlimit(RLIMIT_FSIZE, &limit);
  expect_failed(r, {"training_state.safetensors", "cannot write", "ulimit -f"});
  for (int i : {0, 1}) EXPECT_EQ(contents(out_ + files[i]), before[i]);
  for (const auto& entry : std::filesystem::directory_iterator(out_))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

// What looks like a model has its weights.
TEST_F(Wrong, AFileLimitLeavesNoHalfAModel) {
  ASSERT_EQ(wick(train(data_, out_)).code, 0);
  rlimit limit{}, small{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = limit;
  small.rlim_cur = 16384;
  const std::string to = folder_.path("to");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"merge", "--model", model_, "--adapter-path", out_, "--save-path",
                                 to},
        {"convert", "--model", model_, "--save-path", to, "--save-dtype", "f32"}}) {
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const CliResult r = wick(words);
    setrlimit(RLIMIT_FSIZE, &limit);
    expect_failed(r, {"model.safetensors", "cannot write"});
    EXPECT_FALSE(std::filesystem::exists(to + "/config.json")) << words[0];
  }
}

TEST_F(Wrong, AFolderThatMayNotBeWritten) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  std::filesystem::create_directories(out_);
  std::filesystem::permissions(out_, std::filesystem::perms::owner_read);
  expect_failed(wick(train(data_, out_)), {out_, "Permission denied", "permissions"});
  std::filesystem::permissions(out_, std::filesystem::perms::owner_all);
}

// As a folder that may not be looked into does for everybody but root.
TEST_F(Wrong, APathThatCannotBeLookedAt) {
  const std::string loop = folder_.path("loop"), at = loop + "/x";
  std::filesystem::create_symlink(loop, loop);
  std::vector<std::string> resume = train(data_, at);
  resume.push_back("--resume");
  for (const std::vector<std::string>& words :
       {train(at, out_),
        resume,
        {"generate", "--model", at, "-p", "x"},
        {"generate", "--model", model_, "--adapter-path", at, "-p", "x"},
        {"merge", "--model", model_, "--adapter-path", at, "--save-path", out_},
        {"merge", "--unmerge", "--model", at, "--save-path", out_},
        {"bench", "ops", "--baseline", at}}) {
    const CliResult r = wick(words);
    expect_failed(r, {at, ": cannot be looked at: "});
    EXPECT_EQ(r.err.find("filesystem"), std::string::npos) << r.err;
  }
}

// Another encoding would be answered as if it were words.
TEST_F(Wrong, PromptsThatAreNotUtf8) {
  for (const auto& [text, said] :
       {std::pair(std::string("caf\xe9\n"), "prompts.txt:1: the text is"),
        {std::string("why?\nh\0i\0\n", 10), "prompts.txt:2: a zero"}}) {
    std::vector<std::string> words = train(data_, out_);
    words.insert(words.end(), {"--eval-prompts", folder_.write("prompts.txt", text)});
    expect_failed(wick(words), {said, "save the file in UTF-8"});
  }
}

// Neither waited for nor tried.
TEST_F(Wrong, LooksAtNoRows) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--val-batches", "0"}, {"--test", "--test-batches", "0"}}) {
    std::vector<std::string> words = train(data_, out_);
    words.insert(words.end(), more.begin(), more.end());
    const CliResult r = wick(words);
    EXPECT_NE(r.code, 0) << r.out;
    EXPECT_NE(r.err.find("or -1 for all"), std::string::npos) << r.err;
  }
}

TEST_F(Wrong, SizesThatNobodyCanHaveMeant) {
  std::vector<std::string> words = train(data_, out_);
  words.insert(words.end(), {"--grad-accumulation-steps", "9223372036854775807"});
  expect_failed(wick(words), {"--grad-accumulation-steps", "wanted 1 to 1,000,000,000"});
  words = train(data_, out_);
  words.insert(words.end(), {"--warmup", "0.1"});
  expect_failed(wick(words), {"--warmup is 0.1, wanted a whole number of updates"});
  words = train(data_, out_);
  words.insert(words.end(), {"--eps", "0"});
  expect_failed(wick(words), {"--eps is 0, wanted 1e-30 to 10"});
  expect_failed(wick({"plan", "--shape", "qwen2.5-0.5b", "--batch-size", "100000"}),
                {"100,000 rows", "without --data at most 4,096"});
  expect_failed(wick({"bench", "train", "--shape", "qwen2.5-7b", "--rank", "65536"}),
                {"rank 65536 takes", "choose a smaller"});
  EXPECT_EQ(wick({"generate", "-p", "a", "--top-k", "4294967297"}).code, 2);
}

TEST_F(Wrong, MergingIntoWhatIsMerged) {
  ASSERT_EQ(wick(train(data_, out_)).code, 0);
  for (const std::string& save : {model_, out_})
    for (const char* file : {"", "/adapter_model.safetensors"})
      expect_failed(wick({"merge", "--model", model_, "--adapter-path", out_ + file, "--save-path",
                          save, "--overwrite"}),
                    {"--save-path", "own folder; name another"});
}

}  // namespace
}  // namespace wick::test
