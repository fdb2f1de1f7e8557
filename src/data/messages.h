// SPDX-License-Identifier: Apache-2.0
// Messages as tables and chat APIs write them, and as templates take them: the same for what is
// trained, evaluated and asked.
#pragma once

#include <string>

#include "io/json.h"
#include "text/chat_template.h"

namespace wick {

// Content in parts, as chat APIs write it, becomes their text: templates of text models know
// strings alone, and given a list some fail, some write nothing, some write the list itself.
// Throws: kCorruptFile, beginning with `where`, for a part that is no text.
void join_text_parts(Json& content, const std::string& where);

// Tables and chat APIs write every member of every message; templates take what is there as meant.
// Takes out members that are null and an empty list of tool calls. A content of null stays: some
// templates tell it from none.
// Requires: an object.
void drop_empty_members(Json& message);

// Renders with arguments of tool calls that are objects in strings, as chat APIs write them, as
// those objects, which most templates want; as the strings they are where the template fails with
// objects; and with contents of null as "" where it fails with null. `input` is left as rendered.
// Throws: as ChatTemplate::render.
RenderedChat render_messages(const ChatTemplate& chat_template, TemplateInput& input);

}  // namespace wick
