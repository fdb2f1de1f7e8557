// SPDX-License-Identifier: Apache-2.0
// assistant_spans: see its contract in chat_template.h for the idea.
#include <algorithm>
#include <iterator>
#include <optional>
#include <set>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/chat_template_access.h"

namespace wick {
namespace {

using jinja::Run;
using jinja::Str;

size_t run_begin(const Str& text, size_t i) { return i == 0 ? 0 : text.runs[i - 1].end; }

// A text with provenance, and the questions that are asked of it.
class Traced {
 public:
  Traced(Str text, size_t messages)
      : text_(std::move(text)), regions_(message_regions(text_, messages)) {}

  const std::string& text() const { return text_.text; }
  const TemplateSpan& region(size_t message) const { return regions_[message]; }

  // Takes the text around what a message says, as far as the template handles no other, for its
  // region: some templates write the last turn behind the loop.
  void widen_region(size_t message, TemplateSpan words) {
    TemplateSpan around = {0, text_.text.size()};
    for (const TemplateSpan& other : regions_) {
      if (other.end <= words.begin) around.begin = std::max(around.begin, other.end);
      if (other.begin >= words.end) around.end = std::min(around.end, other.begin);
    }
    regions_[message] = around;
  }

  // Where the data of a message begins and ends inside a range; nothing if there is none.
  std::optional<TemplateSpan> data(size_t message, TemplateSpan in) const {
    std::optional<TemplateSpan> out;
    for (size_t i = 0; i < text_.runs.size(); ++i) {
      TemplateSpan part = {std::max(run_begin(text_, i), in.begin),
                           std::min(text_.runs[i].end, in.end)};
      if (part.begin >= part.end || text_.runs[i].data != static_cast<int32_t>(message)) continue;
      if (!out) out = part;
      out->end = part.end;
    }
    return out;
  }

  // The end of what other messages say in [from, to): a system message that a template writes into
  // the turn is not the model's. `from` if they say nothing there.
  size_t behind_others(size_t message, size_t from, size_t to) const {
    size_t out = from;
    for (size_t i = 0; i < text_.runs.size(); ++i) {
      const Run& run = text_.runs[i];
      if (run.data >= 0 && run.data != static_cast<int32_t>(message) && run.end > from &&
          run_begin(text_, i) < to)
        out = std::min(run.end, to);
    }
    return out;
  }

  // The first stretch in [from, to) that other messages say, template text between their words
  // included: it ends where the message's own words go on, or at `to`.
  std::optional<TemplateSpan> others(size_t message, size_t from, size_t to) const {
    std::optional<TemplateSpan> out;
    for (size_t i = 0; i < text_.runs.size(); ++i) {
      const Run& run = text_.runs[i];
      const size_t begin = std::max(run_begin(text_, i), from);
      if (run.data < 0 || begin >= std::min(run.end, to)) continue;
      const bool own = run.data == static_cast<int32_t>(message);
      if (own && out) return TemplateSpan{out->begin, begin};
      if (!own && !out) out = {begin, to};
    }
    return out;
  }

  // The messages that say something in [from, to).
  std::set<size_t> speakers(size_t from, size_t to) const {
    std::set<size_t> out;
    for (size_t i = 0; i < text_.runs.size(); ++i)
      if (text_.runs[i].data >= 0 && std::max(run_begin(text_, i), from) < text_.runs[i].end &&
          run_begin(text_, i) < to)
        out.insert(static_cast<size_t>(text_.runs[i].data));
    return out;
  }

  // The last message data of the text: whose it is, and where it ends.
  std::optional<std::pair<size_t, size_t>> last_data() const {
    for (size_t i = text_.runs.size(); i-- > 0;)
      if (text_.runs[i].data >= 0)
        return std::pair(static_cast<size_t>(text_.runs[i].data), text_.runs[i].end);
    return std::nullopt;
  }

  // Where the template stopped handling messages for good: the generation prompt follows.
  size_t end_of_messages() const {
    for (size_t i = text_.runs.size(); i-- > 0;)
      if (text_.runs[i].handling >= 0) return text_.runs[i].end;
    return 0;
  }

  // The largest border between two pieces in (from, to], or `from`.
  size_t last_border(size_t from, size_t to) const {
    size_t out = from;
    for (const Run& run : text_.runs)
      if (run.end > from && run.end <= to) out = run.end;
    return out;
  }

 private:
  Str text_;
  std::vector<TemplateSpan> regions_;
};

bool starts_with(const std::string& text, size_t pos, const std::string& with) {
  return text.compare(pos, with.size(), with) == 0;
}

class Finder {
 public:
  Finder(const ChatTemplate& chat_template, const TemplateInput& input)
      : template_(chat_template),
        input_(input),
        full_(ChatTemplateAccess::render(chat_template, input), input.messages.size()) {}

  std::vector<AssistantSpan> run() {
    std::vector<AssistantSpan> out;
    for (size_t i = 0; i < input_.messages.size(); ++i) {
      const Json* role = find_member(input_.messages[i], "role");
      if (!role || !role->is_string() || *role != "assistant") continue;
      if (full_.region(i).begin == full_.region(i).end) {
        const auto words = full_.data(i, {0, full_.text().size()});
        if (!words) continue;
        full_.widen_region(i, *words);
        const auto before = prompt(i);
        if (!before || !aligned(i, *before))
          undetermined(i, "its text is written where the template handles no message");
      }
      AssistantSpan span;
      span.message_index = i;
      span.begin = full_.behind_others(i, begin_of(i), data_begin(i));
      span.end = end_of(i, span.begin);
      add_own_parts(span, out);
    }
    std::sort(out.begin(), out.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < out.size(); ++i)
      if (out[i].begin < out[i - 1].end)
        undetermined(out[i].message_index, "it overlaps the turn before it");
    return out;
  }

 private:
  [[noreturn]] void undetermined(size_t message, const std::string& why) const {
    fail(ErrorCode::kUnsupported, template_.where(), ": cannot tell which text of message ",
         message, " the model writes itself: ", why,
         "; put {% generation %} … {% endgeneration %} around it in the template");
  }

  // A template may write what tools answer into the turn that calls them, between its calls and
  // its words. Which pieces are the model's is seen where the conversation lacks the others'
  // messages: what stands there too.
  void add_own_parts(const AssistantSpan& turn, std::vector<AssistantSpan>& out) const {
    const size_t message = turn.message_index;
    if (!full_.others(message, turn.begin, turn.end)) return out.push_back(turn);
    std::set<size_t> others = full_.speakers(turn.begin, turn.end);
    others.erase(message);
    const std::optional<Traced> alone = without(others);
    const size_t there =
        message - static_cast<size_t>(std::distance(others.begin(), others.lower_bound(message)));
    size_t seen = 0;  // of alone
    for (size_t at = turn.begin; at < turn.end;) {
      const auto next = full_.others(message, at, turn.end);
      const size_t stop = next ? next->begin : turn.end;
      if (const auto own = full_.data(message, {at, stop})) {
        size_t end = next ? own->end : turn.end;
        if (alone) {
          const auto words = alone->data(there, {seen, alone->text().size()});
          size_t same = 0;
          while (words && own->begin + same < stop && words->begin + same < alone->text().size() &&
                 full_.text()[own->begin + same] == alone->text()[words->begin + same])
            ++same;
          const size_t border = full_.last_border(own->begin, own->begin + same);
          if (border == own->begin || next) end = border;
          if (words) seen = words->begin + (border - own->begin);
        }
        if (end > own->begin) out.push_back({at, end, message});
      }
      at = next ? next->end : turn.end;
    }
  }

  // The conversation without some of its messages; nothing where the template refuses that.
  std::optional<Traced> without(const std::set<size_t>& messages) const {
    TemplateInput input = input_;
    input.messages = Json::array();
    for (size_t i = 0; i < input_.messages.size(); ++i)
      if (!messages.contains(i)) input.messages.push_back(input_.messages[i]);
    try {
      return Traced(ChatTemplateAccess::render(template_, input), input.messages.size());
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // The conversation before a turn, as a prompt for it.
  std::optional<Traced> prompt(size_t message) const {
    TemplateInput before = input_;
    before.add_generation_prompt = true;
    before.messages = Json::array();
    for (size_t i = 0; i < message; ++i) before.messages.push_back(input_.messages[i]);
    try {
      return Traced(ChatTemplateAccess::render(template_, before), message);
    } catch (const Error&) {
      return std::nullopt;  // templates may refuse a conversation that ends there
    }
  }

  Traced question(bool with_prompt) const {
    TemplateInput input = input_;
    input.add_generation_prompt = with_prompt;
    input.messages = Json::array({Json{{"role", "user"}, {"content", "x"}}});
    return Traced(ChatTemplateAccess::render(template_, input), 1);
  }

  // A prompt of a single question, for turns whose own prompt the template refuses.
  Traced any_prompt(size_t message) const {
    try {
      return question(/*with_prompt=*/true);
    } catch (const Error& error) {
      undetermined(message, cat("the prompt before it cannot be rendered (", error.what(), ")"));
    }
  }

  // What a question gets behind it when a prompt is asked for; "" where that is not told apart.
  std::string header_of_question() const {
    try {
      const std::string asked = question(/*with_prompt=*/true).text();
      const std::string plain = question(/*with_prompt=*/false).text();
      return asked.starts_with(plain) ? asked.substr(plain.size()) : "";
    } catch (const Error&) {
      return {};
    }
  }

  size_t begin_of(size_t message) const {
    std::optional<Traced> before = prompt(message);
    if (before) {
      if (auto begin = aligned(message, *before)) {
        if (*begin != full_.region(message).begin) return *begin;
        // Templates that write the header as a part of the question have none behind an
        // instruction or an answer, and nobody would ask for a turn without one.
        const std::string header = header_of_question();
        return header.empty() ? *begin : behind(message, header).value_or(*begin);
      }
      // No header apart from what begins every text.
      if (before->end_of_messages() == 0) before.reset();
    }
    if (!before) before = any_prompt(message);
    return after_header(message, *before);
  }

  // Lays what follows the prompt's last message data on the same place of the full text.
  std::optional<size_t> aligned(size_t message, const Traced& before) const {
    const TemplateSpan region = full_.region(message);
    std::string tail;
    size_t at = 0;
    if (auto last = before.last_data()) {
      tail = before.text().substr(last->second);
      auto here = full_.data(last->first, {0, region.end});
      if (!here) return std::nullopt;
      at = here->end;
    } else {
      tail = before.text();
    }
    size_t begin = at + tail.size();
    if (!starts_with(full_.text(), at, tail)) return std::nullopt;
    if (begin < region.begin || begin > region.end) return std::nullopt;
    return begin;
  }

  // Where the header ends in a turn, if it stands there before the turn's data. Something may
  // stand before the header: a separator that a prompt does not need.
  std::optional<size_t> behind(size_t message, const std::string& header) const {
    const TemplateSpan region = full_.region(message);
    const size_t found = full_.text().find(header, region.begin);
    if (found == std::string::npos || found + header.size() > data_begin(message)) return {};
    return found + header.size();
  }

  size_t data_begin(size_t message) const {
    const TemplateSpan region = full_.region(message);
    auto own = full_.data(message, region);
    return own ? own->begin : region.end;
  }

  // Matches the generation prompt with the beginning of the turn, piece by piece.
  size_t after_header(size_t message, const Traced& before) const {
    const TemplateSpan region = full_.region(message);
    std::string header = before.text().substr(before.end_of_messages());
    if (header.empty()) {
      header = header_of_question();
      if (!before.text().ends_with(header)) header.clear();
    }
    if (header.empty()) return region.begin;
    if (auto end = behind(message, header)) return *end;
    // The first turn of a text does without what separates the others.
    const size_t bare = header.find_first_not_of(" \t\r\n");
    if (message == 0 && bare != std::string::npos)
      if (auto end = behind(message, header.substr(bare))) return *end;
    const size_t from = before.text().size() - header.size();
    const std::string& text = full_.text();
    const size_t limit = data_begin(message);
    size_t same = 0;
    while (same < header.size() && region.begin + same < limit &&
           text[region.begin + same] == header[same])
      ++same;
    // Pieces of the prompt come first: the turn may share more text with it by accident.
    size_t border = before.last_border(from, from + same) - from;
    if (border == 0) border = full_.last_border(region.begin, region.begin + same) - region.begin;
    // A turn that goes on in the one before it begins with its own words, behind no header.
    if (border == 0 && limit == region.begin && limit < region.end) return limit;
    if (border == 0)
      undetermined(message,
                   cat("its turn does not begin like the generation prompt \"", header, "\""));
    return region.begin + border;
  }

  size_t end_of(size_t message, size_t begin) const {
    const TemplateSpan region = full_.region(message);
    const std::string& text = full_.text();
    auto named = input_.special_tokens.find("eos_token");
    const std::string eos = named == input_.special_tokens.end() ? "" : named->second;
    size_t data_end = begin;
    if (auto own = full_.data(message, region)) data_end = std::max(begin, own->end);
    if (!eos.empty()) {
      size_t stop = text.find(eos, data_end);
      if (stop != std::string::npos && stop + eos.size() <= region.end) return stop + eos.size();
    }
    size_t end = region.end;
    while (end > data_end && (text[end - 1] == '\n' || text[end - 1] == ' ' ||
                              text[end - 1] == '\t' || text[end - 1] == '\r'))
      --end;
    // A template may write the stop token after it has left the message.
    if (end == data_end && !eos.empty() && starts_with(text, region.end, eos))
      return region.end + eos.size();
    return end;
  }

  const ChatTemplate& template_;
  const TemplateInput& input_;
  Traced full_;
};

std::vector<AssistantSpan> generation_spans(const ChatTemplate& chat_template,
                                            const TemplateInput& input) {
  Str text = ChatTemplateAccess::render(chat_template, input);
  std::vector<AssistantSpan> out;
  int32_t open = -1;
  for (size_t i = 0; i < text.runs.size(); ++i) {
    const Run& run = text.runs[i];
    if (run.generation >= 0) {
      int32_t message = run.handling >= 0 ? run.handling : std::max(run.data, 0);
      if (open == run.generation)
        out.back().end = run.end;
      else
        out.push_back({run_begin(text, i), run.end, static_cast<size_t>(message)});
    }
    open = run.generation;
  }
  return out;
}

}  // namespace

std::vector<TemplateSpan> message_regions(const Str& text, size_t messages) {
  struct Region {
    TemplateSpan span;
    bool has_data = false;
  };
  std::vector<Region> best(messages);
  Region open;
  int32_t current = -1;
  auto close = [&] {
    if (current < 0 || static_cast<size_t>(current) >= messages) return;
    Region& known = best[static_cast<size_t>(current)];
    size_t old_size = known.span.end - known.span.begin, size = open.span.end - open.span.begin;
    if (open.has_data > known.has_data || (open.has_data == known.has_data && size > old_size))
      known = open;
  };
  for (size_t i = 0; i < text.runs.size(); ++i) {
    const Run& run = text.runs[i];
    if (run.handling != current) {
      close();
      current = run.handling;
      open = {{run_begin(text, i), run.end}, false};
    }
    open.span.end = run.end;
    open.has_data = open.has_data || (run.data >= 0 && run.data == current);
  }
  close();
  std::vector<TemplateSpan> out;
  for (const Region& region : best) out.push_back(region.span);
  return out;
}

std::vector<AssistantSpan> assistant_spans(const ChatTemplate& chat_template,
                                           const TemplateInput& input) {
  if (chat_template.has_generation_blocks(input)) return generation_spans(chat_template, input);
  return Finder(chat_template, input).run();
}

}  // namespace wick
