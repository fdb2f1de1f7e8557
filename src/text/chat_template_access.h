// SPDX-License-Identifier: Apache-2.0
// What the two halves of chat templates share: rendering with provenance, and regions of messages.
#pragma once

#include <vector>

#include "text/chat_template.h"
#include "text/jinja_value.h"

namespace wick {

struct ChatTemplateAccess {
  // As ChatTemplate::render, with the origin of every byte.
  static jinja::Str render(const ChatTemplate& chat_template, const TemplateInput& input);
};

// For each message what was written while the template was handling it. Where that is in several
// places, the one with the message's data, else the longest; empty where nothing was written.
std::vector<TemplateSpan> message_regions(const jinja::Str& text, size_t messages);

}  // namespace wick
