// SPDX-License-Identifier: Apache-2.0
// --quantize and convert on a tiny model.
#include <gtest/gtest.h>

#include "base/file.h"
#include "cli/cli.h"
#include "cli/tensors.h"

namespace wick::test {
namespace {

class Convert : public testing::Test {
 protected:
  void SetUp() override {
    write_tiny_model(model_);
    write_tiny_data(data_);
  }
  void convert(std::vector<std::string> words) {
    words.insert(words.begin(), {"convert", "--json"});
    CliResult r = wick(words);
    ASSERT_EQ(r.code, 0) << r.err;
    done_ = r.event("done");
  }
  double loss(std::vector<std::string> words) {
    words.insert(words.begin(), {"eval", "--data", data_, "--json"});
    CliResult r = wick(words);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.event("eval")["loss"].get<double>();
  }
  double trained_loss(std::vector<std::string> words) {
    words.insert(words.begin(), {"train", "--data", data_, "--adapter-path", folder_.path("out"),
                                 "--epochs", "8", "--learning-rate", "0.02", "--json"});
    CliResult r = wick(words);
    EXPECT_EQ(r.code, 0) << r.err;
    Json done = r.event("done");
    EXPECT_LT(done["final_loss"], done["first_loss"]);
    return done["final_loss"].get<double>();
  }
  TempFolder folder_;
  std::string model_ = folder_.path("model"), data_ = folder_.path("data");
  Json done_;
};

TEST_F(Convert, AFolderIsWhatQuantizeMakes) {
  const double plain = loss({"--model", model_, "--dtype", "f32"});
  for (const char* bits : {"8", "4"}) {
    std::string folder = folder_.path(std::string("q") + bits);
    convert({"--model", model_, "--quantize", bits, "--save-path", folder});
    EXPECT_EQ(done_["quantized"], 15);
    EXPECT_EQ(done_["tensors"], 20);
    const double on_load = loss({"--model", model_, "--quantize", bits, "--dtype", "f32"});
    EXPECT_EQ(loss({"--model", folder, "--dtype", "f32"}), on_load);
    EXPECT_NE(on_load, plain);
    EXPECT_NEAR(on_load, plain, std::string(bits) == "8" ? 0.01 : 0.3);
    EXPECT_EQ(trained_loss({"--model", folder}),
              trained_loss({"--model", model_, "--quantize", bits}));
  }
  Json config = parse_json(contents(folder_.path("q4") + "/config.json"), "config.json");
  EXPECT_EQ(config["quantization"]["bits"], 4);
  EXPECT_EQ(config["quantization"]["group_size"], 32);
}

TEST_F(Convert, DequantizedNumbersAreTheSame) {
  std::string codes = folder_.path("q4"), back = folder_.path("plain"), again = folder_.path("q");
  convert({"--model", model_, "--quantize", "4", "--save-path", codes});
  convert({"--model", codes, "--dequantize", "--save-dtype", "f32", "--save-path", back});
  EXPECT_EQ(done_["quantized"], 0);
  EXPECT_NEAR(loss({"--model", back, "--dtype", "f32"}), loss({"--model", codes, "--dtype", "f32"}),
              1e-4);
  Json config = parse_json(contents(back + "/config.json"), "config.json");
  EXPECT_FALSE(config.contains("quantization"));
  // What was quantised stays as it was.
  convert({"--model", back, "--quantize", "4", "--save-path", again});
  EXPECT_EQ(loss({"--model", again, "--dtype", "f32"}), loss({"--model", codes, "--dtype", "f32"}));
}

// PEFT saves the table beside a pair on it. Its codes are the same table; another one is not.
TEST_F(Convert, ATableBesideAnAdapterMeetsItsCodes) {
  const std::string adapter = folder_.path("out"), file = adapter + "/adapter_model.safetensors";
  ASSERT_EQ(wick({"train", "--model", model_, "--data", data_, "--adapter-path", adapter,
                  "--epochs", "1", "--targets", "q_proj,embed_tokens"})
                .code,
            0);
  const std::string model = contents(model_ + "/model.safetensors"), before = contents(file);
  const std::string table = "base_model.model.model.embed_tokens.base_layer.weight";
  for (const char* bits : {"8", "4"}) {
    const std::string codes = folder_.path(std::string("q") + bits);
    convert({"--model", model_, "--quantize", bits, "--save-path", codes});
    write_file(file, with_copy(before, model, "model.embed_tokens.weight", table));
    EXPECT_EQ(
        loss({"--model", codes, "--adapter-path", adapter, "--dtype", "f32"}),
        loss({"--model", model_, "--quantize", bits, "--adapter-path", adapter, "--dtype", "f32"}));
    // A first number of 2^127 or so.
    write_file(file, with_copy(before, model, "model.embed_tokens.weight", table, 0x40));
    const CliResult other =
        wick({"eval", "--data", data_, "--model", codes, "--adapter-path", adapter});
    EXPECT_EQ(other.code, 1);
    EXPECT_NE(other.err.find("is not the model's own: row 0"), std::string::npos) << other.err;
  }
}

// What a code has lost does not come back, and a second code loses more.
TEST_F(Convert, CodesOfCodesAreMadeOnlyWhenAsked) {
  const std::string codes = folder_.path("q4"), out = folder_.path("anew");
  convert({"--model", model_, "--quantize", "4", "--save-path", codes});
  auto words = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"convert", "--model", codes, "--save-path", out});
    return more;
  };
  const CliResult refused = wick(words({"--quantize", "8"}));
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("is quantised already (4 bits in groups of 32)"), std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find("--allow-requantize"), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_EQ(wick(words({"--dequantize", "--allow-requantize"})).code, 2);
  EXPECT_EQ(wick(words({"--quantize", "8", "--allow-requantize"})).code, 0);
  // The same codes are no new ones.
  EXPECT_EQ(wick(words({"--quantize", "4", "--overwrite"})).code, 0);
  EXPECT_EQ(loss({"--model", out, "--dtype", "f32"}), loss({"--model", codes, "--dtype", "f32"}));
}

// The same on load: the codes that a folder has stay what they are.
TEST_F(Convert, LoadingMakesNoCodesOfCodes) {
  const std::string codes = folder_.path("q4");
  convert({"--model", model_, "--quantize", "4", "--save-path", codes});
  EXPECT_EQ(loss({"--model", codes, "--quantize", "4", "--dtype", "f32"}),
            loss({"--model", codes, "--dtype", "f32"}));
  const std::vector<std::vector<std::string>> others = {{"--quantize", "8"},
                                                        {"--quantize", "4", "--group-size", "64"}};
  const std::vector<std::vector<std::string>> verbs = {
      {"eval", "--data", data_},
      {"train", "--data", data_, "--adapter-path", folder_.path("out")},
      {"generate", "--prompt", "a"}};
  for (const auto& other : others)
    for (std::vector<std::string> words : verbs) {
      words.insert(words.end(), {"--model", codes});
      words.insert(words.end(), other.begin(), other.end());
      const CliResult r = wick(words);
      EXPECT_EQ(r.code, 1);
      EXPECT_NE(r.err.find("is quantised already (4 bits in groups of 32)"), std::string::npos);
      EXPECT_NE(r.err.find("leave --quantize out"), std::string::npos) << r.err;
    }
  EXPECT_FALSE(std::filesystem::exists(folder_.path("out")));
}

TEST_F(Convert, RefDequantizesTheSameCodes) {
  for (const char* group : {"32", "64"}) {
    std::vector<std::string> words = {"--model", model_,         "--quantize",
                                      "4",       "--group-size", group,
                                      "--dtype", "f32",          "--no-exact-match"};
    std::vector<std::string> ref = words;
    ref.insert(ref.end(), {"--device", "ref"});
    EXPECT_NEAR(loss(words), loss(ref), 1e-4) << group;
  }
}

TEST_F(Convert, WrongUse) {
  auto code = [&](std::vector<std::string> words, const char* part) {
    CliResult r = wick(words);
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
    return r.code;
  };
  std::string out = folder_.path("q");
  EXPECT_EQ(code({"convert", "--model", model_, "--save-path", out}, "--quantize"), 2);
  EXPECT_EQ(code({"convert", "--quantize", "5", "--save-path", out}, "wanted 8, 4"), 2);
  EXPECT_EQ(code({"convert", "--quantize", "4", "--dequantize", "--save-path", out}, "exclude"), 2);
  EXPECT_EQ(code({"convert", "--dequantize", "--group-size", "64", "--save-path", out}, "belongs"),
            2);
  EXPECT_EQ(
      code({"convert", "--quantize", "4", "--group-size", "48", "--save-path", out}, "wanted"), 2);
  EXPECT_EQ(
      code({"convert", "--model", model_, "--quantize", "4", "--save-path", model_}, "own folder"),
      1);
  EXPECT_EQ(code({"convert", "--model", model_, "--quantize", "4", "--group-size", "128",
                  "--save-path", out},
                 "nothing would be quantised"),
            1);
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_EQ(code({"train", "--model", model_, "--data", data_, "--quantize", "8",
                  "--fine-tune-type", "full", "--adapter-path", out},
                 "frozen"),
            1);
}

}  // namespace
}  // namespace wick::test
