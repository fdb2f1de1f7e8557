// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "api/internal.h"
#include "base/check.h"
#include "data/check.h"
#include "data/inspect.h"

namespace wick {

namespace {

const char* issue_kind_name(DataIssueKind kind) {
  switch (kind) {
    case DataIssueKind::kCut:
      return "cut";
    case DataIssueKind::kNoTrainedToken:
      return "no_trained_token";
    case DataIssueKind::kNoStopToken:
      return "no_stop_token";
    case DataIssueKind::kUnreadable:
      return "unreadable";
    case DataIssueKind::kDropped:
      return "dropped";
    case DataIssueKind::kOther:
      return "other";
  }
  return "other";
}

}  // namespace

DataOptions data_options(const DatasetOptions& options) {
  DataOptions d;
  d.mask_prompt = options.mask_prompt;
  d.max_seq_length = options.max_seq_length;
  d.system_prompt = options.system_prompt;
  if (!options.chat_template_config.empty())
    d.chat_template_config = parse_json(options.chat_template_config, "chat-template-config");
  if (!options.date.empty()) d.date = options.date;
  d.prompt_key = options.prompt_feature;
  d.completion_key = options.completion_feature;
  d.skip_unreadable = options.skip_unreadable;
  d.files_as_any_split = options.files_as_any_split;
  d.text_key = options.text_feature;
  d.messages_key = options.chat_feature;
  return d;
}

namespace {

// As in training: a row is never longer than the model's context.
DataOptions options_within(const DatasetOptions& options, const Model::Impl& m) {
  DataOptions d = data_options(options);
  d.max_seq_length = std::min(d.max_seq_length, m.config.max_positions);
  return d;
}

}  // namespace

Dataset::Dataset(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;

DataSource parse_data_source(const std::string& text) {
  std::error_code ignored;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || std::filesystem::exists(text, ignored))
    return {text, 1};
  DataSource source{text.substr(0, colon), 1};
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data() + colon + 1, end, source.weight);
  if (error != std::errc() || stop != end) return {text, 1};
  if (!(source.weight > 0) || source.weight > 1e6)
    fail(ErrorCode::kInvalidArgument, "--data ", text, ": the weight is ", source.weight,
         ", wanted more than 0 and at most 1000000");
  return source;
}

DataCheck check_data(const Model& model, const std::vector<DataSource>& sources,
                     const std::vector<std::string>& splits, const DatasetOptions& options,
                     const std::string& fix, const std::function<bool()>& should_stop,
                     bool overwrite, const std::function<void(const DatasetIssue&)>& on_finding) {
  const Model::Impl& m = model.impl();
  if (sources.empty() || splits.empty())
    fail(ErrorCode::kInvalidArgument, "check_data: no data set or no split is named");
  return check_data(sources, splits, m.words(), m.chat_template ? &*m.chat_template : nullptr,
                    options_within(options, m), fix, should_stop, overwrite, on_finding);
}

Dataset Dataset::load(const Model& model, const std::string& path, const std::string& split,
                      const DatasetOptions& options) {
  return load(model, std::vector<DataSource>{{path, 1}}, split, options);
}

Dataset Dataset::load(const Model& model, const std::vector<DataSource>& sources,
                      const std::string& split, const DatasetOptions& options) {
  const Model::Impl& m = model.impl();
  auto impl = std::make_unique<Impl>(Impl{model.impl().share(), {}, options});
  DataOptions read = options_within(options, m);
  read.pairs = PairRows::kWhereFound;
  impl->rows = ExampleSet::load(sources, split, m.words(),
                                m.chat_template ? &*m.chat_template : nullptr, read);
  return Dataset(std::move(impl));
}

bool Dataset::has_split(const std::string& path, const std::string& split) {
  return ExampleSet::has_split(path, split);
}

bool Dataset::has_split(const std::vector<DataSource>& sources, const std::string& split) {
  return std::any_of(sources.begin(), sources.end(),
                     [&](const DataSource& s) { return ExampleSet::has_split(s.path, split); });
}

int64_t Dataset::size() const { return impl_->rows.size(); }
std::string Dataset::file() const { return impl_->rows.file(); }

DatasetRow Dataset::row(int64_t index) const {
  if (index < 0 || index >= size())
    fail(ErrorCode::kInvalidArgument, file(), ": there is no row ", index, "; rows are 0 to ",
         size() - 1);
  const Example& e = impl_->rows[index];
  DatasetRow row;
  row.format = e.second > 0 ? "preference" : row_format_name(e.format);
  row.second = e.second;
  row.line = e.line;
  row.full_length = e.full_length;
  for (const ShownToken& t : shown_tokens(e, impl_->model.tokenizer()))
    row.tokens.push_back({t.id, t.text, t.trained});
  return row;
}

DatasetStats Dataset::stats() const {
  DataReport report = inspect(impl_->rows);
  DatasetStats s;
  s.rows = report.rows;
  s.rows_read = report.rows_read;
  s.tokens = report.tokens;
  s.trained_tokens = report.trained.total;
  s.shortest = report.lengths.min;
  s.longest = report.lengths.max;
  s.median = report.lengths.p50;
  s.p90 = report.lengths.p90;
  return s;
}

std::vector<DatasetIssue> Dataset::issues() const {
  std::vector<DatasetIssue> issues;
  for (const DataIssue& i : impl_->rows.issues())
    issues.push_back({issue_kind_name(i.kind), i.file, i.line, i.what});
  for (const auto& [later, earlier] : inspect(impl_->rows).duplicates)
    issues.push_back({"duplicate", impl_->rows.file_of(later), impl_->rows[later].line,
                      cat("has the same tokens as ", impl_->rows.file_of(earlier), ":",
                          impl_->rows[earlier].line)});
  return issues;
}

std::optional<PromptAndAnswer> last_turn(const Example& e, const Model::Impl& model) {
  if (e.format == RowFormat::kText || e.full_length > static_cast<int64_t>(e.ids.size()))
    return std::nullopt;
  if (e.undesirable) return std::nullopt;
  auto in_answer = [&](size_t i) { return (e.trained[i] & 1) != 0; };
  size_t end = e.second > 0 ? static_cast<size_t>(e.second) : e.ids.size();
  while (end > 0 && !in_answer(end - 1)) --end;
  size_t begin = end;
  while (begin > 0 && in_answer(begin - 1)) --begin;
  // Without a mask everything but the first token is trained, and no turn can be told apart.
  if (begin <= 1 || begin == end) return std::nullopt;
  PromptAndAnswer turn;
  turn.words = e.prompt;
  turn.prompt.assign(e.ids.begin(), e.ids.begin() + static_cast<ptrdiff_t>(begin));
  turn.answer.assign(e.ids.begin() + static_cast<ptrdiff_t>(begin),
                     e.ids.begin() + static_cast<ptrdiff_t>(end));
  std::vector<int32_t> stops = model.stop_tokens();
  while (!turn.answer.empty() &&
         (std::find(stops.begin(), stops.end(), turn.answer.back()) != stops.end() ||
          model.words().is_special(turn.answer.back())))
    turn.answer.pop_back();
  return turn;
}

}  // namespace wick
