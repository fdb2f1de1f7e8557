// SPDX-License-Identifier: Apache-2.0
#include "data/source.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <set>
#include <sstream>

#include "base/file.h"
#include "data/packing.h"
#include "fixture.h"

namespace wick::data_test {
namespace {

namespace fs = std::filesystem;

struct Read {
  std::vector<std::pair<int64_t, Json>> rows;
  std::vector<std::pair<int64_t, std::string>> bad;
  std::vector<int64_t> blank;
};

Read read(std::string_view text, RowFileKind kind) {
  Read r;
  for_each_row(text, "file", kind,
               {.row = [&](int64_t line, Json&& row) { r.rows.emplace_back(line, std::move(row)); },
                .bad = [&](int64_t line, const std::string& what,
                           std::string_view) { r.bad.emplace_back(line, what); },
                .blank = [&](int64_t line) { r.blank.push_back(line); }});
  return r;
}

TEST(Csv, QuotesLineEndsAndMark) {
  Read r = read(
      "\xEF\xBB\xBFprompt,completion\r\n"
      "\"a, \"\"b\"\"\",\"two\nlines\"\r\n"
      "x,y\n"
      "\n"
      "\"\",last",
      RowFileKind::kCsv);
  ASSERT_EQ(r.rows.size(), 3u);
  EXPECT_EQ(r.rows[0].first, 2);
  EXPECT_EQ(r.rows[0].second["prompt"], "a, \"b\"");
  EXPECT_EQ(r.rows[0].second["completion"], "two\nlines");
  EXPECT_EQ(r.rows[1].first, 4);
  EXPECT_EQ(r.rows[2].second["prompt"], "");
  EXPECT_EQ(r.blank, std::vector<int64_t>{5});
}

TEST(Csv, SemicolonsAndTabsSeparateWhereTheHeaderHasNoComma) {
  for (const char* text :
       {"\xEF\xBB\xBFprompt;completion\r\n\"a;b\";1,5\r\n", "prompt\tcompletion\n\"a;b\"\t1,5\n"}) {
    Read r = read(text, RowFileKind::kCsv);
    ASSERT_EQ(r.rows.size(), 1u) << text;
    EXPECT_EQ(r.rows[0].second["prompt"], "a;b");
    EXPECT_EQ(r.rows[0].second["completion"], "1,5");
  }
}

TEST(Csv, NamesInQuotesAndTheFilesOwnNameTellTheSeparator) {
  Read r = read("\"prompt\";\"note, or nothing\";\"completion\"\na;;b\n", RowFileKind::kCsv);
  ASSERT_EQ(r.rows.size(), 1u);
  EXPECT_EQ(r.rows[0].second["completion"], "b");
  // A .tsv file with one column.
  r = read("text\na, b; c\n", row_file_kind("train.tsv", ""));
  ASSERT_EQ(r.rows.size(), 1u);
  EXPECT_EQ(r.rows[0].second, (Json{{"text", "a, b; c"}}));
  r = read("prompt\tnote, or nothing\tcompletion\na\t\tb\n", row_file_kind("train.tsv", ""));
  ASSERT_EQ(r.rows.size(), 1u);
  EXPECT_EQ(r.rows[0].second["completion"], "b");
  r = read("prompt,completion\na,b\n", row_file_kind("train.tsv", ""));
  ASSERT_EQ(r.rows.size(), 1u);
  EXPECT_EQ(r.rows[0].second["completion"], "b");
}

// Of any column: prompts, completions and preferred answers may be lists of messages too.
TEST(Csv, ListsOfMessagesAreReadAsSuch) {
  Read r = read(
      "prompt,chosen,text\n"
      "\"[{\"\"role\"\": \"\"user\"\", \"\"content\"\": \"\"q\"\"}]\",a,\"[{\"\"x\"\": 1}]\"\n"
      "\"[{'role': 'user', 'content': 'q'}]\",a,b\n"
      "\"[{\"\"role\"\": cut\",a,b\n"
      "\"[{\"\"content\"\": \"\"of no role\"\"}]\",[1],b\n",
      RowFileKind::kCsv);
  ASSERT_EQ(r.rows.size(), 2u);
  EXPECT_EQ(r.rows[0].second["prompt"], Json::array({Json{{"role", "user"}, {"content", "q"}}}));
  EXPECT_EQ(r.rows[0].second["text"], "[{\"x\": 1}]");
  EXPECT_EQ(r.rows[1].second["prompt"], "[{\"content\": \"of no role\"}]");
  EXPECT_EQ(r.rows[1].second["chosen"], "[1]");
  ASSERT_EQ(r.bad.size(), 2u);
  EXPECT_EQ(r.bad[0].first, 3);
  EXPECT_NE(r.bad[0].second.find("as Python prints it"), std::string::npos) << r.bad[0].second;
  EXPECT_EQ(r.bad[1].first, 4);
  EXPECT_NE(r.bad[1].second.find("\"prompt\""), std::string::npos) << r.bad[1].second;
}

// As pandas writes a table with its index.
TEST(Csv, AColumnWithoutANameIsNoPartOfARow) {
  Read r = read(",prompt,completion\n0,a,b\n1,c,d\n", RowFileKind::kCsv);
  ASSERT_EQ(r.rows.size(), 2u);
  EXPECT_EQ(r.rows[1].second, (Json{{"prompt", "c"}, {"completion", "d"}}));
  EXPECT_THROW(read(",\n0,a\n", RowFileKind::kCsv), Error);
}

// Tables of measurements have tens of thousands of columns: a name is not looked for among all
// others.
TEST(Csv, ManyColumnsTakeLittleTime) {
  constexpr int kColumns = 200'000;
  std::string text = "c0", record = "0";
  for (int i = 1; i < kColumns; ++i) {
    text += ",c" + std::to_string(i);
    record += ",0";
  }
  text += "\n" + record + "\n" + record + "\n";
  Read r = read(text, RowFileKind::kCsv);
  ASSERT_EQ(r.rows.size(), 2u);
  EXPECT_EQ(r.rows[1].second.size(), static_cast<size_t>(kColumns));
  EXPECT_EQ(r.rows[1].second.back(), "0");
}

TEST(Csv, BadRecordsAreNamedAndPassed) {
  Read r = read("a,b\n1\n1,2,3\n\"x\"y,2\n\"open,2\n3,4\n\xff,1\n", RowFileKind::kCsv);
  ASSERT_EQ(r.rows.size(), 1u);
  EXPECT_EQ(r.rows[0].first, 6);
  std::set<int64_t> lines;
  for (const auto& [line, what] : r.bad) lines.insert(line);
  EXPECT_EQ(lines, (std::set<int64_t>{2, 3, 4, 5, 7}));
  EXPECT_THROW(for_each_row("a,b\n1\n", "f", RowFileKind::kCsv, {.row = [](int64_t, Json&&) {}}),
               Error);
  EXPECT_THROW(read("a,a\n1,2\n", RowFileKind::kCsv), Error);
}

TEST(JsonArray, LinesOfElements) {
  Read r = read(
      "[\n {\"text\": \"a]\"},\n {\"text\":\n  \"b\"}, {\"text\": nope},\n\n {\"text\": \"c\"}]",
      RowFileKind::kJsonArray);
  ASSERT_EQ(r.rows.size(), 3u);
  EXPECT_EQ(r.rows[0].first, 2);
  EXPECT_EQ(r.rows[1].first, 3);
  EXPECT_EQ(r.rows[2].first, 6);
  ASSERT_EQ(r.bad.size(), 1u);
  EXPECT_EQ(r.bad[0].first, 4);
  EXPECT_EQ(read("[{\"text\": \"a\"}", RowFileKind::kJsonArray).bad.size(), 1u);
  EXPECT_EQ(read("[] x", RowFileKind::kJsonArray).bad.size(), 1u);
  EXPECT_EQ(read(" [ ] ", RowFileKind::kJsonArray).rows.size(), 0u);
}

// Of a row that is cut short, has a quote too few or no comma behind it: the others are read.
TEST(JsonArray, ATornRowTakesNoOtherWithIt) {
  Read r =
      read("[\n{\"n\": 2},\n{\"n\": \"3},\n{\"n\": 4},\n{\"n\": [\n{\"n\": 6}\n{\"n\": 7}\n]\n",
           RowFileKind::kJsonArray);
  std::vector<int64_t> rows, bad;
  for (const auto& [line, row] : r.rows) {
    EXPECT_EQ(row["n"], line);
    rows.push_back(line);
  }
  for (const auto& [line, what] : r.bad) bad.push_back(line);
  EXPECT_EQ(rows, (std::vector<int64_t>{2, 4, 6, 7}));
  EXPECT_EQ(bad, (std::vector<int64_t>{3, 5, 7}));

  // As json.dumps writes it with an indent; the row that is torn names the line of the fault.
  r = read(
      "[\n  {\n    \"a\": [\n      {\"n\": 1}\n    ]\n  },\n  {\n    \"a\": \"\n  },\n  {\n    "
      "\"a\": 2\n  }\n]",
      RowFileKind::kJsonArray);
  ASSERT_EQ(r.rows.size(), 2u);
  EXPECT_EQ(r.rows[1].first, 10);
  ASSERT_EQ(r.bad.size(), 1u);
  EXPECT_EQ(r.bad[0].first, 7);
  EXPECT_TRUE(r.bad[0].second.starts_with("in line 8:")) << r.bad[0].second;

  // Rows whose own parts stand as far left as they do show no place to go on at.
  const std::string flat = "{\n\"a\": [\n{\n\"n\": 1\n}\n]\n}";
  r = read("[\n" + flat + ",\n{\n\"a\": [\n{\n\"n\": \"\n}\n]\n},\n" + flat + "]",
           RowFileKind::kJsonArray);
  EXPECT_EQ(r.rows.size(), 1u);
}

TEST(RowFiles, KindByNameAndFirstByte) {
  EXPECT_EQ(row_file_kind("a.csv", ""), RowFileKind::kCsv);
  EXPECT_EQ(row_file_kind("a.CSV", ""), RowFileKind::kCsv);
  EXPECT_EQ(row_file_kind("a.tsv", ""), RowFileKind::kTsv);
  EXPECT_EQ(row_file_kind("a.json", " \n[{}]"), RowFileKind::kJsonArray);
  EXPECT_EQ(row_file_kind("a.json", "{}\n{}"), RowFileKind::kJsonLines);
  EXPECT_EQ(row_file_kind("a.jsonl", "[1]"), RowFileKind::kJsonLines);
}

class Sources : public DataTest {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    make_folder(folder_ / "a");
    make_folder(folder_ / "b");
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    write_file(folder_ / name, text);
    return (folder_ / name).string();
  }
  ExampleSet read_all(const std::vector<DataSource>& sources, const char* split = "train") {
    return ExampleSet::load(sources, split, tokenizer, nullptr, options);
  }
  std::string rows(int from, int to) {
    std::string text;
    for (int i = from; i < to; ++i) text += cat("{\"text\": \"row ", i, "\"}\n");
    return text;
  }
  template <typename... Parts>
  static std::string cat(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
  }
  fs::path folder_;
};

// As in --data <(command), where a second look finds nothing.
TEST_F(Sources, APipeIsReadOnce) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text = rows(0, 3), path = cat("/dev/fd/", ends[0]);
  ASSERT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  EXPECT_EQ(read_all({{path}}).size(), 3);
  try {
    read_all({{path}});
    ADD_FAILURE() << "rows come from an empty pipe";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("this pipe, which can be read once"), std::string::npos)
        << e.what();
  }
  ::close(ends[0]);
}

TEST_F(Sources, FormatsAndSplitNames) {
  write("a/train.csv", "text\none\n");
  write("a/dev.json", R"([{"text": "two"}])");
  write("b/train.json", "{\"text\": \"three\"}\n");
  EXPECT_EQ(read_all({{(folder_ / "a").string(), 1}}).size(), 1);
  EXPECT_EQ(read_all({{(folder_ / "a").string(), 1}}, "valid")[0].line, 1);
  ExampleSet both = read_all({{(folder_ / "a").string(), 1}, {(folder_ / "b").string(), 1}});
  ASSERT_EQ(both.size(), 2);
  EXPECT_NE(both.file_of(0).find("train.csv"), std::string::npos);
  EXPECT_NE(both.file_of(1).find("train.json"), std::string::npos);
  EXPECT_EQ(
      read_all({{(folder_ / "a").string(), 1}, {(folder_ / "b").string(), 1}}, "valid").size(), 1);
  EXPECT_THROW(read_all({{(folder_ / "a").string(), 1}, {(folder_ / "b").string(), 1}}, "test"),
               Error);
}

TEST_F(Sources, WeightsCountRowsPerEpoch) {
  const std::string a = write("a.jsonl", rows(0, 10)), b = write("b.jsonl", rows(10, 20)),
                    c = write("c.jsonl", rows(20, 27));
  ExampleSet set = read_all({{a, 2}, {b, 0.5}, {c, 1}});
  EXPECT_EQ(set.rows_per_epoch(), 20 + 5 + 7);
  for (bool shuffle : {true, false}) {
    Order order(set, 4, 3, shuffle);
    ASSERT_EQ(order.updates_per_epoch(), 8);
    std::vector<std::set<int64_t>> halves;
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      std::map<int64_t, int> seen;
      std::set<std::pair<int64_t, int64_t>> told_apart;
      for (int64_t u = 0; u < 8; ++u) {
        const std::vector<int64_t> drawn = order.update(8 * epoch + u),
                                   copies = order.copies(8 * epoch + u);
        for (size_t i = 0; i < drawn.size(); ++i) {
          ++seen[drawn[i]];
          EXPECT_TRUE(told_apart.emplace(drawn[i], copies[i]).second);
          EXPECT_LT(copies[i], 2);
        }
      }
      std::set<int64_t>& half = halves.emplace_back();
      for (int64_t row = 0; row < 27; ++row) {
        if (row < 10) {
          EXPECT_EQ(seen[row], 2);
        }
        if (row >= 20) {
          EXPECT_EQ(seen[row], 1);
        }
        if (row >= 10 && row < 20 && seen[row] > 0) half.insert(row);
        EXPECT_LE(seen[row], 2);
      }
      EXPECT_EQ(half.size(), 5u);
    }
    EXPECT_NE(halves[0], halves[1]);
    EXPECT_EQ(Order(set, 4, 3, shuffle).update(11), order.update(11));
  }
  EXPECT_NE(set.fingerprint(), read_all({{a, 1}, {b, 0.5}, {c, 1}}).fingerprint());
  EXPECT_THROW(read_all({{a, 0}}), Error);
  // Without weights the order is that of so many rows.
  ExampleSet plain = read_all({{a, 1}, {b, 1}});
  EXPECT_EQ(Order(plain, 4, 9, true).update(7), Order(20, 4, 9, true).update(7));
}

TEST_F(Sources, HeldOutRowsFollowFromTheSeed) {
  const std::string a = write("a.jsonl", rows(0, 40) + rows(0, 5));
  auto split = [&](uint64_t seed, double amount) {
    ExampleSet train = read_all({{a, 1}});
    ExampleSet held = train.hold_out(amount, seed);
    return std::pair(std::move(train), std::move(held));
  };
  auto [train, held] = split(1, 0.2);
  EXPECT_GE(held.size(), 9);
  EXPECT_EQ(train.size() + held.size(), 45);
  EXPECT_TRUE(shared_rows(held, train).empty());
  auto [again, held_again] = split(1, 0.2);
  EXPECT_EQ(held.fingerprint(), held_again.fingerprint());
  EXPECT_EQ(train.fingerprint(), again.fingerprint());
  EXPECT_NE(held.fingerprint(), split(2, 0.2).second.fingerprint());
  EXPECT_GE(split(1, 3).second.size(), 3);
  // A share is rounded, and holds out a row at least.
  const std::string b = write("b.jsonl", rows(0, 100));
  for (const auto& [share, wanted] : {std::pair(0.07, 7), {0.004, 1}, {0.34, 34}}) {
    ExampleSet all = read_all({{b, 1}});
    EXPECT_EQ(all.hold_out(share, 1).size(), wanted) << share;
  }
  EXPECT_THROW(split(1, 45), Error);
}

}  // namespace
}  // namespace wick::data_test
