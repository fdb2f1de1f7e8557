// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "app/format.h"
#include "app/options.h"
#include "app/terminal.h"
#include "app/tokenizer_of.h"
#include "app/verbs.h"
#include "base/check.h"

namespace wick {

namespace {

struct Flags {
  ModelFlags model;
  OutputFlags output;
  std::string text;
  std::vector<std::string> words;
  bool special = true, decode = false;
};

// Whole numbers separated by blanks, commas or brackets, so that a JSON list can be pasted.
std::vector<int32_t> read_ids(const std::string& text, int64_t vocab) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    if (std::string_view(" \t\r\n,[]").find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    int32_t id = 0;
    auto [stop, error] = std::from_chars(at, end, id);
    std::string_view word(at, std::min<size_t>(static_cast<size_t>(end - at), 20));
    if (error != std::errc())
      fail(ErrorCode::kInvalidArgument, "--decode wants token ids, got \"", word, "\"");
    if (id < 0 || id >= vocab)
      fail(ErrorCode::kInvalidArgument, "--decode: token id ", id,
           " is outside the vocabulary, wanted 0 to ", vocab - 1);
    ids.push_back(id);
    at = stop;
  }
  return ids;
}

int run(const Args& args, const Flags& flags) {
  if (!flags.decode && !flags.words.empty())
    throw UsageError(cat("unexpected argument \"", flags.words[0],
                         "\"; give the text with --text or on standard input"));
  if (flags.decode && args.given("text") && !flags.words.empty())
    throw UsageError("--decode takes ids as arguments or with --text, not both");
  Output out(flags.output.json, flags.output.quiet);
  const std::shared_ptr<const Tokenizer> own = tokenizer_of(flags.model.model);
  const Tokenizer& tokenizer = *own;
  std::string input;
  if (!flags.words.empty())
    for (const auto& word : flags.words) input += word + " ";
  else
    input = args.given("text") ? flags.text : read_standard_input();

  if (flags.decode) {
    std::vector<int32_t> ids = read_ids(input, tokenizer.vocab_size());
    std::string text = tokenizer.decode(ids, !flags.special);
    out.event({{"ids", ids}, {"text", text}});
    if (!out.json()) std::fwrite(text.data(), 1, text.size(), stdout);
    return kDone;
  }
  std::vector<int32_t> ids = tokenizer.encode_ids(input, flags.special);
  Json pieces = Json::array();
  for (int32_t id : ids) pieces.push_back(tokenizer.piece(id));
  out.event({{"ids", ids}, {"pieces", pieces}});
  if (out.json()) return kDone;
  std::string line;
  for (int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  out.result(line);
  return kDone;
}

}  // namespace

std::function<int()> declare_tokenize(Args& args) {
  auto flags = std::make_shared<Flags>();
  args.summary = "text to token ids, and back";
  args.details =
      "Reads standard input unless --text is given. Special tokens written in the text are "
      "recognised; those that the tokenizer adds by itself are left out with --no-special.";
  args.json = "One object: ids and pieces; with --decode, ids and text.";
  args.examples = {
      {"echo -n \"Hello there\" | wick tokenize", "ids of a text"},
      {"wick tokenize --text \"Hello there\" --json", "ids and pieces"},
      {"wick tokenize --decode 15 27 3", "and back"},
  };
  args.group("Text");
  args.text("--text", flags->text, "TEXT", "The text, or with --decode the ids.")
      .shown("standard input");
  args.flag("--special", flags->special,
            "Add the tokenizer's special tokens; with --decode, show special tokens.");
  args.flag("--decode", flags->decode, "Turn ids (arguments or standard input) into text.");
  args.positional("ID", flags->words, "With --decode: token ids.");
  args.group("Model");
  args.text("--model", flags->model.model, "FOLDER",
            "Whose tokenizer.json; the folder needs no weights.")
      .shown("the small model inside wick")
      .path();
  add_output_flags(args, flags->output);
  return [flags, &args] { return run(args, *flags); };
}

}  // namespace wick
