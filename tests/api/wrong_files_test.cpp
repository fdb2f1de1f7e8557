// SPDX-License-Identifier: Apache-2.0
// Files and options that are wrong: the message says which, and what was meant.
#include <filesystem>
#include <string>

#include "api/run_fixture.h"
#include "io/json.h"

namespace wick {
namespace {

namespace fs = std::filesystem;

class WrongFiles : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    write_data("data", kChatRow, kChatRow);
  }
};

TEST_F(WrongFiles, ModelsAreNamed) {
  auto load = [&](const std::string& folder) {
    return message_of([&] { Model::load(engine_, {.model = folder}); });
  };
  const fs::path tiny = fs::path(WICK_SOURCE_DIR) / "models/tiny";
  const fs::path copy = root_ / "model";
  auto fresh = [&] {
    fs::remove_all(copy);
    fs::copy(tiny, copy);
    return read_json(copy / "config.json");
  };
  auto save = [&](const Json& config) { write_file(copy / "config.json", dump_json(config)); };

  Json config = fresh();
  config["model_type"] = "qwen33";
  save(config);
  EXPECT_NE(load(copy).find("did you mean qwen3?"), std::string::npos) << load(copy);

  config = fresh();
  config["hidden_size"] = 200;
  save(config);
  EXPECT_NE(load(copy).find("has shape"), std::string::npos) << load(copy);

  config = fresh();
  config["num_hidden_layers"] = 9;
  save(config);
  EXPECT_NE(load(copy).find("has no tensor model.layers.8."), std::string::npos) << load(copy);

  config = fresh();
  config["num_hidden_layers"] = 7;
  save(config);
  EXPECT_NE(load(copy).find("has the tensor model.layers.7."), std::string::npos) << load(copy);

  config = fresh();
  config["vocab_size"] = 3000;
  save(config);
  EXPECT_NE(load(copy).find("do not belong together"), std::string::npos) << load(copy);

  // A token for padding that the model has no row for, as well-known files have it.
  config = fresh();
  save(config);
  const int64_t vocab = config["vocab_size"];
  Json tokenizer = read_json(copy / "tokenizer.json");
  tokenizer["added_tokens"].push_back({{"id", vocab}, {"content", "<beyond>"}, {"special", true}});
  write_file(copy / "tokenizer.json", tokenizer.dump());
  EXPECT_EQ(load(copy), "");
  for (int32_t id :
       Model::load(engine_, {.model = copy.string()}).tokenizer().encode_ids("a <beyond> b", true))
    EXPECT_LT(id, vocab);

  config = fresh();
  config["hidden_size"] = -4;
  save(config);
  EXPECT_FALSE(load(copy).empty());

  fresh();
  std::string weights = read_file(copy / "model.safetensors");
  write_file(copy / "model.safetensors", weights.substr(0, weights.size() / 2));
  EXPECT_FALSE(load(copy).empty());

  // A weight that is not a number is found when it is first used.
  fresh();
  weights[weights.size() - 1] = static_cast<char>(0x7f);
  weights[weights.size() - 2] = static_cast<char>(0xff);
  write_file(copy / "model.safetensors", weights);
  std::string refused = message_of([&] {
    Model model = Model::load(engine_, {.model = copy.string()});
    Generator(model).generate("hello");
  });
  EXPECT_NE(refused.find("not finite"), std::string::npos) << refused;
}

TEST_F(WrongFiles, AdaptersAndOptionsAreNamed) {
  Model model = Model::load(engine_);
  const std::string golden = std::string(WICK_SOURCE_DIR) + "/tests/golden/qwen2_tied/adapter";
  std::string refused = message_of([&] { model.attach_adapter(golden); });
  EXPECT_NE(refused.find("another model"), std::string::npos) << refused;

  TrainOptions o = run_options("x");
  o.targets = {"q_prok"};
  EXPECT_NE(message_of([&] { Trainer(model, o); }).find("did you mean q_proj?"), std::string::npos);
  o = run_options("x");
  o.rank_pattern = {{"q_prok", 4}};
  EXPECT_NE(message_of([&] { Trainer(model, o); }).find("did you mean q_proj?"), std::string::npos);
  o = run_options("x");
  o.alpha_pattern = {{"layers\\.[89]\\..*", 4.0}};
  EXPECT_NE(message_of([&] { Trainer(model, o); }).find("no linear that matches"),
            std::string::npos);
  o = run_options("x");
  o.exclude_modules = {"all-linear"};
  EXPECT_NE(message_of([&] { Trainer(model, o); }).find("no linear is left"), std::string::npos);
  o = run_options("x");
  o.lr_schedule = "cosin";
  EXPECT_NE(message_of([&] { Trainer(model, o); }).find("did you mean cosine?"), std::string::npos);
  o = run_options("x");
  o.num_layers = 99;
  EXPECT_NE(message_of([&] { Trainer(model, o); }).find("has 8 layers"), std::string::npos);
  o = run_options("x");
  write_file(root_ / "data/train.jsonl", "{\"text\": \"fine\"}\n{\"text\": \n");
  EXPECT_NE(message_of([&] { Trainer(model, o); }).find("train.jsonl:2"), std::string::npos);
}

}  // namespace
}  // namespace wick
