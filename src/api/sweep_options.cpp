// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <filesystem>
#include <set>

#include "base/check.h"
#include "wick/sweep.h"

namespace wick {

namespace {

constexpr size_t kMostAdapters = 64;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

double number(const std::string& axis, const std::string& text, double low, double high) {
  double x = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc() || end != text.data() + text.size() || !(x >= low && x <= high))
    fail(ErrorCode::kInvalidArgument, "--sweep ", axis, ": \"", text, "\" is no number from ", low,
         " to ", high);
  return x;
}

int64_t integer(const std::string& axis, const std::string& text, double low) {
  const double x = number(axis, text, low, 9e15);
  if (x != static_cast<double>(static_cast<int64_t>(x)))
    fail(ErrorCode::kInvalidArgument, "--sweep ", axis, ": \"", text, "\" is no whole number");
  return static_cast<int64_t>(x);
}

void set(TrainOptions& o, const std::string& key, const std::string& value,
         const std::string& axis) {
  o.asked.push_back(key);
  if (key == "lr" || key == "learning_rate") {
    o.learning_rate = number(axis, value, 0, 10);
  } else if (key == "rank") {
    o.rank = integer(axis, value, 1);
  } else if (key == "alpha") {
    o.alpha = number(axis, value, 0, 1e9);
  } else if (key == "dropout") {
    o.dropout = number(axis, value, 0, 0.999);
  } else if (key == "seed") {
    o.seed = static_cast<uint64_t>(integer(axis, value, 0));
  } else if (key == "weight_decay") {
    o.weight_decay = number(axis, value, 0, 10);
  } else if (key == "warmup") {
    o.warmup = number(axis, value, 0, 1e15);
  } else if (key == "targets") {
    o.targets = split(value, '+');
  } else {
    const std::vector<std::string> known = {"lr",   "rank",         "alpha",  "dropout",
                                            "seed", "weight_decay", "warmup", "targets"};
    const std::string near = nearest_name(key, known);
    fail(ErrorCode::kInvalidArgument, "--sweep ", axis, ": \"", key, "\" is not swept over",
         near.empty() ? "; wanted lr, rank, alpha, dropout, seed, weight_decay, warmup or targets"
                      : cat("; did you mean ", near, "?"));
  }
}

// The last part of a path, which becomes a folder's name; "." and ".." are none.
std::string data_name(const std::string& path) {
  std::error_code none;
  std::filesystem::path p = std::filesystem::absolute(path, none).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  // What is behind a dot is a file's kind, but of a folder a part of its name.
  const std::string name = (std::filesystem::is_directory(p, none) ? p.filename() : p.stem());
  return name.empty() || name == "." || name == ".." ? "data" : name;
}

}  // namespace

std::vector<SweepAdapter> expand_sweep(const TrainOptions& base,
                                       const std::vector<std::string>& axes,
                                       const std::vector<std::string>& data) {
  std::vector<SweepAdapter> all = {{"", base}};
  auto multiply = [&](const std::vector<std::string>& labels, auto&& change) {
    std::vector<SweepAdapter> next;
    if (all.size() * labels.size() > kMostAdapters)
      fail(ErrorCode::kInvalidArgument, "--sweep: more than ", kMostAdapters, " adapters at once");
    for (const SweepAdapter& a : all)
      for (size_t i = 0; i < labels.size(); ++i) {
        SweepAdapter made = a;
        made.name += (made.name.empty() ? "" : "_") + labels[i];
        change(made.options, i);
        next.push_back(std::move(made));
      }
    all = std::move(next);
  };
  if (!data.empty()) {
    std::vector<std::string> labels;
    for (const std::string& path : data) labels.push_back(data_name(path));
    multiply(labels, [&](TrainOptions& o, size_t i) {
      o.data = data[i];
      o.data_sources.clear();
    });
  }
  std::set<std::string> keys;
  for (const std::string& axis : axes) {
    const size_t at = axis.find('=');
    if (at == std::string::npos || at == 0 || at + 1 == axis.size())
      fail(ErrorCode::kInvalidArgument, "--sweep ", axis, ": wanted key=value,value");
    const std::string key = axis.substr(0, at);
    if (!keys.insert(key == "learning_rate" ? "lr" : key).second)
      fail(ErrorCode::kInvalidArgument, "--sweep ", axis, ": ", key,
           " is given twice; its values stand behind one ", key, "=, with commas between them");
    const std::vector<std::string> values = split(axis.substr(at + 1), ',');
    std::vector<std::string> labels;
    for (const std::string& value : values) labels.push_back(cat(key, "=", value));
    multiply(labels, [&](TrainOptions& o, size_t i) { set(o, key, values[i], axis); });
  }
  std::set<std::string> names;
  for (SweepAdapter& a : all) {
    if (a.name.empty()) a.name = "adapter";
    for (char& c : a.name)
      if (c == '/') c = '-';
    if (!names.insert(a.name).second)
      fail(ErrorCode::kInvalidArgument, "--sweep: two adapters would be called ", a.name,
           "; give each value once, and data sets names of their own");
    const std::filesystem::path folder = std::filesystem::path(base.adapter_path) / a.name;
    a.options.adapter_path = folder.string();
    if (!base.metrics.empty())
      a.options.metrics = (folder / std::filesystem::path(base.metrics).filename()).string();
    if (!base.tensorboard.empty())
      a.options.tensorboard = (std::filesystem::path(base.tensorboard) / a.name).string();
  }
  return all;
}

}  // namespace wick
