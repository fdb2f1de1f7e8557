#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders chat templates with transformers into tests/unit/text/jinja_goldens.json.

    make_template_goldens.py                      write the goldens
    make_template_goldens.py --lines DIR FILE     also for the templates of another folder, one JSON
                                                  object per line, for comparisons outside the tree

Needs transformers and jinja2. The snippets are in template_snippets.txt beside this file, the whole
templates in tests/unit/text/templates.
"""
import datetime
import json
import pathlib
import sys

import transformers.utils.chat_template_utils as ctu

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TESTS = ROOT / "tests" / "unit" / "text"


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2)


ctu.datetime = FixedDate

GIVEN = {
    "given": "value",
    "given_list": [1, 2, 3],
    "given_dict": {"k": {"n": 1}, "b": True},
    "given_float": 0.1,
    "given_none": None,
    "given_unicode": "na\u00efve \U0001f600",
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a \"city\" <now> & here",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Stadt, z. B. Z\u00fcrich"},
                    "days": {"type": "integer", "default": 1},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}},
]


def user(text):
    return {"role": "user", "content": text}


def bot(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = call("get_weather", {"city": "Z\u00fcrich", "days": 2, "x": [1.5, None, True]})

CONVERSATIONS = {
    "one": [user("Hi there")],
    "two": [user("Hi there"), bot("Hello!")],
    "system": [system("Be brief.\n"), user("Hi"), bot("Hello!"), user(" Bye "), bot(" Bye. ")],
    "unicode": [user("Gr\u00fc\u00dfe \u4f60\u597d \U0001f600\n\n\ttab"), bot("\u00a0\u4f60\u597d\U0001f600\u2028")],
    "thinking": [
        user("2+2?"),
        bot("<think>\nEasy.\n</think>\n\n4"),
        user("3+3?"),
        bot("<think>\nAlso easy.\n</think>\n\n6"),
    ],
    "reasoning_field": [user("2+2?"), bot("4", reasoning_content="Hm\n"), user("And?"), bot("5", reasoning_content="So")],
    "tools": [
        user("Weather?"),
        bot("", tool_calls=[WEATHER]),
        {"role": "tool", "name": "get_weather", "content": "{\"t\": 21}", "tool_call_id": "call00001"},
        bot("21 degrees."),
    ],
    "tools_twice": [
        system("Use tools."),
        user("Weather?"),
        bot("Let me look.", tool_calls=[WEATHER, call("noop", {}, "call00002")]),
        {"role": "tool", "name": "get_weather", "content": "21", "tool_call_id": "call00001"},
        {"role": "tool", "name": "noop", "content": "ok", "tool_call_id": "call00002"},
        bot("21 degrees."),
        user("Thanks"),
        bot("Welcome."),
    ],
    "empty": [user(""), bot(""), user("x"), bot("")],
    "repeats": [user("assistant"), bot("assistant"), user("<|turn|>assistant\n"), bot("<think>\n\n</think>\n\nassistant")],
    "open": [user("Hi"), bot("Hello"), user("Again")],
}


def render(template, messages, tools=None, add_generation_prompt=False, **extra):
    variables = {"bos_token": "<s>", "eos_token": "</s>", **extra}
    try:
        texts, spans = ctu.render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=template,
            return_assistant_tokens_mask="{%- generation" in template or "{% generation" in template,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    except Exception as error:
        return {"error": str(error), "type": type(error).__name__}
    out = {"text": texts[0]}
    if spans and spans[0]:
        to_byte = lambda i: len(texts[0][:i].encode())
        out["generation"] = [[to_byte(a), to_byte(b)] for a, b in spans[0]]
    return out


def snippets():
    name, lines = None, []
    for line in (HERE / "template_snippets.txt").read_text(encoding="utf-8").split("\n") + ["=== "]:
        if line.startswith("=== "):
            if name:
                yield name, "\n".join(lines).replace("@@CR@@", "\r")
            name, lines = line[4:], []
        elif name:
            lines.append(line)


def whole(folder):
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        for name, messages in CONVERSATIONS.items():
            for prompt in (False, True):
                variants = [(None, {})]
                if name in ("two", "tools", "tools_twice"):
                    variants.append((TOOLS, {}))
                if name in ("two", "thinking", "tools"):
                    variants.append((None, {"enable_thinking": False}))
                for tools, extra in variants:
                    yield path.name, source, name, prompt, tools, extra, render(
                        source, messages, tools, prompt, **extra
                    )


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--lines":
        with open(sys.argv[3], "w", encoding="utf-8") as out:
            for name, template in snippets():
                line = {"name": name, "template": template, "messages": CONVERSATIONS["system"], "extra": GIVEN}
                line["want"] = render(template, CONVERSATIONS["system"], **GIVEN)
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
            for folder in (TESTS / "templates", pathlib.Path(sys.argv[2])):
                for file, source, name, prompt, tools, extra, want in whole(folder):
                    line = {"name": file + "/" + name, "template": source, "messages": CONVERSATIONS[name]}
                    line.update(tools=tools, extra=extra, agp=prompt, spans=not prompt, want=want)
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")
        return
    goldens = {
        "made_by": "tools/golden/make_template_goldens.py",
        "given": GIVEN,
        "tools": TOOLS,
        "conversations": CONVERSATIONS,
        "snippets": [
            {"name": name, "template": template, **render(template, CONVERSATIONS["system"], **GIVEN)}
            for name, template in snippets()
        ],
        "templates": [
            {"template": file, "conversation": name, "prompt": prompt, "tools": tools is not None, "extra": extra, **want}
            for file, _, name, prompt, tools, extra, want in whole(TESTS / "templates")
        ],
    }
    path = TESTS / "jinja_goldens.json"
    path.write_text(json.dumps(goldens, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
