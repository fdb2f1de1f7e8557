// SPDX-License-Identifier: Apache-2.0
// Chat templates: the Jinja that Hugging Face chat templates are written in, rendered to the byte
// as transformers renders it (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, the
// {% generation %} tag, plain-JSON tojson, raise_exception, strftime_now), and the byte ranges of
// the result that a trainer needs.
//
// A template is hostile until it has been rendered: evaluation is bounded in steps, output, nesting
// and recursion, and a template that goes over a bound, or is wrong, is an Error that names the
// template and the line. include, import, extends, lipsum and random are refused.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace wick {

// A byte range [begin, end) of a rendered text.
struct TemplateSpan {
  size_t begin = 0, end = 0;
};

struct RenderedChat {
  std::string text;
  std::vector<TemplateSpan> generation;  // written inside {% generation %} blocks, in order
  std::vector<TemplateSpan> messages;    // one per message: what was written while the template was
                                         // handling it, header included; empty if nothing was
  bool has_generation_blocks = false;    // the template has such blocks, whether or not one ran
};

struct TemplateInput {
  Json messages = Json::array();  // {role, content, …}
  Json tools;                     // array of tool schemas; null if none
  Json extra;                     // object: further variables, e.g. enable_thinking; may be null
  bool add_generation_prompt = false;
  // The tokenizer's, by name (bos_token, eos_token, …): a template finds the others undefined.
  std::map<std::string, std::string> special_tokens;
  std::optional<std::string> date;  // "2026-01-02", what strftime_now sees; now if absent
};

// Whether a rendered text has the words of a message, without the white space around them, which
// templates often cut. A template may leave a message out without a word.
bool has_words(std::string_view text, std::string_view message);

// A parsed template. Immutable: render() may be called from several threads at once.
class ChatTemplate {
 public:
  // `where` names the template in messages (a path, or the model's). `with_tools`, where it is not
  // empty, is the template of conversations that offer tools.
  // Throws: kInvalidArgument for a syntax error, kUnsupported for a refused construct.
  explicit ChatTemplate(std::string source, std::string where = "chat_template",
                        const std::string& with_tools = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Throws: kInvalidArgument, with the line, where jinja2 would raise (raise_exception, an
  // undefined value that is used, a wrong type) or where a bound is reached.
  RenderedChat render(const TemplateInput& input) const;

  // Whether the template that renders `input` has {% generation %} blocks.
  bool has_generation_blocks(const TemplateInput& input) const;
  const std::string& where() const;

 private:
  friend struct ChatTemplateAccess;
  struct Parsed;
  std::unique_ptr<const Parsed> parsed_;
};

// What the model has to produce itself in one assistant turn.
struct AssistantSpan {
  size_t begin = 0, end = 0;  // bytes of ChatTemplate::render(input).text
  size_t message_index = 0;   // into TemplateInput::messages
};

// The trained spans of every assistant message of `input`, in order of the text: from the end of
// the generation prompt to the end of the stop token that the template writes, without the white
// space after it. Reasoning wrappers and tool calls that the template writes for the turn are
// inside; what tools answer, where it writes that into the turn, is not, and the turn has several
// spans then.
//
// Where the template has {% generation %} blocks they are the answer. Elsewhere it is found from
// provenance, not from lengths: the evaluator knows for every byte of the output which message's
// fields it came from, and for every piece which message the template was handling (the loop
// variable, macro argument or variable bound to it).
//   begin  The conversation is rendered up to the turn with the generation prompt. What that text
//   has
//          after its last byte of message data is literal template text ("<|im_end|>\n<|im_start|>
//          assistant\n"); it is laid on the full text after the same message data, so earlier turns
//          may have changed meanwhile. Where only a part of it is there (a prompt that opens a
//          reasoning block which the finished turn does not have), whole pieces of it are matched.
//   Templates that write that header only behind a question are asked with one.
//   end    The end of what was written for the message; after the last byte of its data, up to the
//          first eos token if there is one, else without trailing white space.
// A message that the template leaves out has no span.
//
// Throws: as render(); kUnsupported, naming the template and the turn, where a span cannot be
// determined: such a template needs {% generation %} blocks.
std::vector<AssistantSpan> assistant_spans(const ChatTemplate& chat_template,
                                           const TemplateInput& input);

}  // namespace wick
