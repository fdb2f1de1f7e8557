// SPDX-License-Identifier: Apache-2.0
#include "data/inspect.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "text/unicode.h"

namespace wick {
namespace {

std::string_view bytes_of_ids(const Example& example) {
  return {reinterpret_cast<const char*>(example.ids.data()),
          example.ids.size() * sizeof(example.ids[0])};
}

// The beginning of `text` that is what the tokens from `first` on, which have none yet, stand for
// goes to them; what is left is the next token's. A character goes to the last of its tokens, and
// bytes that are no text are a U+FFFD each.
void hand_out(std::vector<ShownToken>& shown, size_t first, const Tokenizer& tokenizer,
              std::string& text) {
  std::string bytes, lost;
  std::vector<size_t> ends;  // in `bytes`
  for (size_t i = first; i < shown.size(); ++i) {
    bytes += tokenizer.bytes_of(shown[i].id);
    ends.push_back(bytes.size());
  }
  for (size_t i = 0; i < bytes.size(); ++i) lost += unicode::kReplacement;
  const bool whole = unicode::is_valid(bytes);
  const std::string& found = whole ? bytes : lost;
  if (!text.starts_with(found)) return;
  for (size_t begin = 0, i = 0; i < ends.size(); ++i) {
    const bool cut = whole && ends[i] < bytes.size() && unicode::is_continuation(bytes[ends[i]]);
    if (cut) continue;
    const size_t width = whole ? 1 : unicode::kReplacement.size();
    shown[first + i].text = found.substr(begin * width, (ends[i] - begin) * width);
    begin = ends[i];
  }
  text.erase(0, found.size());
}

}  // namespace

NumberStats number_stats(std::vector<int64_t> numbers) {
  NumberStats stats;
  if (numbers.empty()) return stats;
  std::sort(numbers.begin(), numbers.end());
  size_t n = numbers.size();
  auto percentile = [&](size_t p) { return numbers[(n * p + 99) / 100 - 1]; };
  stats.min = numbers.front();
  stats.p50 = percentile(50);
  stats.p90 = percentile(90);
  stats.p99 = percentile(99);
  stats.max = numbers.back();
  for (int64_t x : numbers) stats.total += x;
  stats.mean = static_cast<double>(stats.total) / static_cast<double>(n);
  return stats;
}

DataReport inspect(const ExampleSet& dataset) {
  DataReport report;
  report.rows_read = dataset.rows_read();
  report.rows = dataset.size();
  report.rows_cut = dataset.issue_count(DataIssueKind::kCut);
  report.rows_left_out = dataset.issue_count(DataIssueKind::kNoTrainedToken);
  std::vector<int64_t> lengths, trained;
  std::unordered_map<std::string_view, int64_t> seen;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const Example& example = dataset[i];
    ++report.rows_of_format[static_cast<size_t>(example.format)];
    report.tokens += static_cast<int64_t>(example.ids.size());
    lengths.push_back(example.full_length);
    trained.push_back(std::count_if(example.trained.begin(), example.trained.end(),
                                    [](uint8_t t) { return t != 0; }));
    auto [it, fresh] = seen.emplace(bytes_of_ids(example), i);
    if (!fresh) report.duplicates.emplace_back(i, it->second);
  }
  report.lengths = number_stats(std::move(lengths));
  report.trained = number_stats(std::move(trained));
  return report;
}

std::vector<std::pair<int64_t, int64_t>> shared_rows(const ExampleSet& a, const ExampleSet& b) {
  std::unordered_map<std::string_view, int64_t> seen;
  for (int64_t i = 0; i < b.size(); ++i) seen.emplace(bytes_of_ids(b[i]), i);
  std::vector<std::pair<int64_t, int64_t>> shared;
  for (int64_t i = 0; i < a.size(); ++i) {
    auto it = seen.find(bytes_of_ids(a[i]));
    if (it != seen.end()) shared.emplace_back(i, it->second);
  }
  return shared;
}

std::vector<ShownToken> shown_tokens(const Example& example, const Tokenizer& tokenizer) {
  std::vector<ShownToken> shown;
  shown.reserve(example.ids.size());
  StreamDecoder decoder(tokenizer, false);
  // Tokens whose text the decoder holds back. One at the beginning of a row may have none at all.
  size_t held = 0;
  auto settle = [&](std::string& text) {
    for (size_t first = held; first < shown.size() && !text.empty(); ++first) {
      const size_t before = text.size();
      hand_out(shown, first, tokenizer, text);
      if (text.size() < before) break;
    }
  };
  for (size_t i = 0; i < example.ids.size(); ++i) {
    const int32_t id = example.ids[i];
    std::string text = decoder.push(id);
    if (!text.empty()) {
      settle(text);
      held = i + 1;
    }
    shown.push_back({id, tokenizer.piece(id), std::move(text), example.trained[i] != 0,
                     tokenizer.is_special(id)});
  }
  std::string rest = decoder.finish();
  settle(rest);
  if (!shown.empty()) shown.back().text += rest;
  return shown;
}

}  // namespace wick
