#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/unit/text/tokenizer_goldens: small tokenizers of every kind that wick reads, trained
here on text made here, and what Hugging Face's `tokenizers` does with a list of nasty strings.

Needs the package `tokenizers`. Usage: make_tokenizer_goldens.py [FOLDER]
"""

import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

WORDS = {
    "en": "the a small boat sails over cold water and nobody asks where it goes don't we'll they've "
    "I'm you're she'd it's bread table window seven horses running quickly slowly under bridges "
    "light lamp evening answer question number green stone river house garden bird letter",
    "de": "über schöne Straßen gehen große Füße während Bäume wachsen Gemüse Öfen für müde Jäger",
    "fr": "où êtes-vous déjà l'été naïve cœur garçon forêt à côté très élève",
    "ru": "маленькая лодка плывёт по холодной воде и никто не спрашивает куда она идёт",
    "zh": "小船 冷水 没有人 问 它 去 哪里 窗户 桌子 面包 七 匹 马",
    "ja": "ちいさな ふね が つめたい みず の うえ を ゆく カタカナ",
    "ar": "قارب صغير يبحر فوق الماء البارد",
    "code": "int main(void) { return 0; } for (i = 0; i < n; ++i) x[i] += y->z; def f(a, b=None): "
    "\treturn a['k'] != b // 2",
}


def corpus(rng):
    lines = []
    for _ in range(1500):
        kind = rng.choice(["en"] * 6 + list(WORDS))
        words = [rng.choice(WORDS[kind].split(" ")) for _ in range(rng.randint(3, 12))]
        if kind == "en" and rng.random() < 0.3:
            words.insert(rng.randrange(len(words)), str(rng.randint(0, 99999)))
        line = (" " if kind not in ("zh", "ja") else "").join(words)
        lines.append(line[:1].upper() + line[1:] + rng.choice([".", "!", "?", ";\n", "  ", ""]))
    return lines


def nasty_strings(rng):
    fixed = [
        "", " ", "  ", "   ", "a", " a", "a ", " a ", "  a  b   c    ", "\t", "\n", "\n\n", "\r\n", "\r\n\r\n",
        " \n ", "a\n\n\nb", "a \n b", "a\t\tb", "\ta", "x\r\ny\r\n", "a\rb", "\x0b\x0c", "\u00a0x\u2003y\u3000z",
        "\u180ea\u200bb\ufeffc", "line\u2028sep\u2029par\u0085nel",
        "Don't DON'T don’t we'LL They'VE I'M you'Re she'D it'S 'tis 's 'S 'ſ 'K", "''' 'sss 'lll",
        "the small boat sails over cold water.", "The small boat, sails?! Over cold--water...",
        "0", "12", "123", "1234", "12345678901234567890", "1,234.56 3.14e-10 0x7F", "٣٤٥ Ⅷ ½ ² ①", "a1b22c333",
        "über Straßen große FÜSSE", "e\u0301 \u00e9 E\u0301\u0323 \u1e9b\u0323 ﬁ Ω \u2126", "a\u0300\u0301\u0302\u0303b", "\u0301start",
        "\u1100\u1161\u11a8 가 각 \uac00\u11a8", "が か\u3099 ﾊﾞ ㌔", "İstanbul ΑΣ ẞ ǅ",
        "小船冷水没有人问它去哪里", "小船 in 冷水，七匹马！", "ちいさなふね カタカナ", "маленькая лодка", "قارب صغير שלום עולם",
        "\u202eabc\u202c \u2066x\u2069", "हिन्दी में ক্ষ தமிழ் ไทยคำ", "👍", "👍🏽", "👨\u200d👩\u200d👧\u200d👦 family", "🇩🇪🇫🇷", "❤\ufe0f✂",
        "mixed漢字kanaカナ123ру456", "\x00", "a\x00b", "\x01\x7f\x80\xad", "\ufffd\ufffe", "\U0010ffff\U000e0001",
        "int main(void) { return 0; }\n\tfor (i=0;i<n;++i) x[i]+=y->z;\n", "a_b-c.d/e\\f|g~h`i^j", "http://a.b/c?d=e&f#g",
        "$100 €50 £3 ¥7 +-=<>", "« guillemets » “quotes” ‘single’ „low“ …—–", "...", "!!!!!!!!", "_ __ ___", "▁▁a▁b", "Ġa Ċ", "<0x41><0xE2>",
        "a" * 300, "ab" * 200, "é" * 100, "漢" * 120, " " * 200, "\n" * 50, " \t" * 40, "x" + " " * 60 + "y", "the" * 150, "0" * 101,
        "<s>", "</s>", "<s></s><s>", "a<s>b</s>c", " <s> a </s> ", "<s", "<|x|>", "<|x|><|x|>", "hi<|x|>there", "hi <|x|> there",
        "<|x|>y|>", "<|x|y|>", "<|x|y|> and <|x|> and <|x", "  <mask>  here", "a <mask>b", "<mask><mask>", "\n<mask>\u3000\u2003z",
        "word wordy sword word. word_ 'word' wörd word", "<STRIP>  x", "x  <strip>  y", "  <strip>", "Tool tool TOOL <tool> </tool>", "<unk> <pad>",
        "aé<s>漢<|x|>🙂", "<|x|>  \n<s>", "'s<s>'s", "é<s>e\u0301<s>",
    ]
    pieces = [
        " ", "  ", "\n", "\r\n", "\t", "the", "boat", "Don't", "'LL", "12", "3456", "é", "e\u0301", "漢", "字", "🙂", "👨\u200d👩", "ß", "<s>", "</s>",
        "<|x|>", "<|x|y|>", "<mask>", "word", "<strip>", ".", ",", "?!", "_", "-", "\u00a0", "\u3000", "\x00", "лодка", "ب", "x", "Q", "▁", "“", "€", "½",
    ]
    for _ in range(70):
        fixed.append("".join(rng.choice(pieces) for _ in range(rng.randint(2, 14))))
    return fixed


def added(content, **flags):
    token = dict(content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    token.update(flags)
    return token


ADDED = [
    added("<s>"),
    added("</s>"),
    added("<|x|>"),
    added("<|x|y|>"),
    added("<mask>", lstrip=True),
    added("<strip>", rstrip=True, lstrip=True, special=False),
    added("word", single_word=True, normalized=True, special=False),
    added("tool", normalized=True, special=False),
    added("</tool>", special=False),
]


def train(lines, pre_tokenizer, normalizer=None, vocab=600, **trainer):
    tokenizer = Tokenizer(models.BPE(**({"unk_token": "<unk>"} if trainer.pop("unknown", False) else {})))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=vocab, show_progress=False, **trainer))
    return json.loads(tokenizer.to_str())


def finish(data, extra=ADDED, processor=None, decoder=None, **model):
    """Sets the added tokens (after the vocabulary), post-processor, decoder and model options."""
    data["model"].update(model)
    next_id = max(data["model"]["vocab"].values()) + 1
    data["added_tokens"] = []
    for token in extra:
        known = data["model"]["vocab"].get(token["content"])
        data["added_tokens"].append({"id": next_id if known is None else known, **token})
        next_id += known is None
    data["added_tokens"].sort(key=lambda token: token["id"])
    ids = {token["content"]: token["id"] for token in data["added_tokens"]}
    data["post_processor"] = processor(ids) if processor else None
    data["decoder"] = decoder
    return data


def template(single):
    def make(ids):
        items = [
            {"Sequence": {"id": "A", "type_id": 0}} if s == "$A" else {"SpecialToken": {"id": s, "type_id": 0}} for s in single
        ]
        special = {s: {"id": s, "ids": [ids[s]], "tokens": [s]} for s in single if s != "$A"}
        pair = items + [{"Sequence": {"id": "B", "type_id": 1}}]
        return {"type": "TemplateProcessing", "single": items, "pair": pair, "special_tokens": special}

    return make


def byte_tokens_first(data):
    """SentencePiece's layout: <unk> <s> </s>, 256 byte tokens, then the rest."""
    old = data["model"]["vocab"]
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    names += [t for t, _ in sorted(old.items(), key=lambda item: item[1]) if t not in names]
    data["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    return data


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
BYTE_LEVEL_ONLY = {**BYTE_LEVEL, "use_regex": False}
MARK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
SPM_DECODER = {"type": "Sequence", "decoders": [
    MARK, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
UNKNOWN = added("<unk>")


def split(expression, behavior="isolated"):
    return pre_tokenizers.Split(tokenizers.Regex(expression), behavior)


def byte_level_after(*steps):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def old_merges(data):
    data["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in data["model"]["merges"]]
    return data


def all_tokenizers(lines):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bl = dict(initial_alphabet=alphabet)

    data = train(lines, pre_tokenizers.ByteLevel(add_prefix_space=False), **bl)
    yield "gpt2", old_merges(finish(data, processor=lambda _: BYTE_LEVEL, decoder=BYTE_LEVEL))

    data = train(lines, pre_tokenizers.ByteLevel(add_prefix_space=True), vocab=400, **bl)
    roberta = lambda ids: {"type": "RobertaProcessing", "sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]],
                           "trim_offsets": False, "add_prefix_space": True}
    yield "roberta", finish(data, processor=roberta, decoder=BYTE_LEVEL)

    data = train(lines, byte_level_after(split(LLAMA3)), vocab=800, **bl)
    # With ignore_merges a word of the vocabulary is a token even where merges do not lead to it.
    data["model"]["vocab"]["Ġunmergeable"] = len(data["model"]["vocab"])
    data["model"]["vocab"]["xxxx"] = len(data["model"]["vocab"])
    sequence = lambda ids: {"type": "Sequence", "processors": [BYTE_LEVEL, template(["<s>", "$A"])(ids)]}
    yield "llama3", finish(data, processor=sequence, decoder=BYTE_LEVEL, ignore_merges=True)

    data = train(lines, byte_level_after(split(QWEN2)), normalizers.NFC(), vocab=700, **bl)
    yield "qwen2", finish(data, processor=lambda _: BYTE_LEVEL, decoder=BYTE_LEVEL)

    for name, expression in (("cl100k", CL100K), ("o200k", O200K)):
        data = train(lines, byte_level_after(split(expression)), vocab=350, **bl)
        yield name, finish(data, decoder=BYTE_LEVEL)

    digits = split(r"\p{N}{1,3}")
    cjk = split(r"[一-龥぀-ゟ゠-ヿ]+")
    data = train(lines, byte_level_after(digits, cjk, split(DEEPSEEK_WORDS)), vocab=400, **bl)
    yield "deepseek", finish(data, processor=template(["<s>", "$A", "</s>", "<|x|>"]), decoder=BYTE_LEVEL)

    spm = dict(unknown=True, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=90, vocab=500)
    spm_model = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    legacy = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    # Trained with words cut at spaces, used without any cut, as Llama 2's file is.
    data = byte_tokens_first(train(lines, pre_tokenizers.Metaspace(), **spm))
    data["normalizer"], data["pre_tokenizer"] = json.loads(legacy.__getstate__()), None
    yield "spm_legacy", finish(data, [UNKNOWN, *ADDED], template(["<s>", "$A"]), SPM_DECODER, **spm_model)

    for scheme, cut in (("first", False), ("always", True), ("never", True)):
        data = byte_tokens_first(train(lines, pre_tokenizers.Metaspace(), **{**spm, "vocab": 330}))
        data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}
        decoder = SPM_DECODER if scheme == "first" else dict(data["pre_tokenizer"])
        yield f"metaspace_{scheme}", finish(data, [UNKNOWN, *ADDED], template(["<s>", "$A", "</s>"]), decoder, **spm_model)

    data = byte_tokens_first(train(lines, pre_tokenizers.Metaspace(), **{**spm, "vocab": 330}))
    data["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    data["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    gemma = {"type": "Sequence", "decoders": [MARK, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    yield "gemma", finish(data, [UNKNOWN, *ADDED], template(["<s>", "$A"]), gemma, **spm_model)

    plain = pre_tokenizers.Sequence([
        pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()])
    clean = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip(), normalizers.Replace(tokenizers.Regex(r"[\s&&[^\n]]{2,}"), " ")])
    data = train(lines, plain, clean, vocab=300, unknown=True, special_tokens=["<unk>"], limit_alphabet=60,
                 end_of_word_suffix="</w>")
    yield "plain_suffix", finish(data, [UNKNOWN, *ADDED], unk_token="<unk>")

    plain = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=False),
                                     pre_tokenizers.Punctuation("merged_with_previous")])
    clean = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip(left=True, right=False)])
    data = train(lines, plain, clean, vocab=300, unknown=True, special_tokens=["<unk>"], limit_alphabet=60,
                 continuing_subword_prefix="##")
    bert = lambda ids: {"type": "BertProcessing", "sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]]}
    strip = {"type": "Sequence", "decoders": [{"type": "Strip", "content": "#", "start": 2, "stop": 0},
                                              {"type": "Fuse"}, {"type": "Replace", "pattern": {"Regex": "o+"}, "content": "0"},
                                              {"type": "Strip", "content": "e", "start": 1, "stop": 0}]}
    yield "plain_prefix", finish(data, [UNKNOWN, *ADDED], bert, strip, unk_token="<unk>", fuse_unk=True)

    # Bytes made visible by the normaliser, and cut after ByteLevel.
    visible = normalizers.Sequence([normalizers.NFD(), normalizers.ByteLevel()])
    data = train(lines, split("Ġ", "merged_with_next"), visible, vocab=330, **bl)
    yield "visible_normal", finish(data, decoder=BYTE_LEVEL)
    after = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True), split("[ĠĊ]", "contiguous")])
    data = train(lines, after, vocab=300, **bl)
    yield "visible_cut", finish(data, decoder=BYTE_LEVEL)


def byte_offsets(text, offsets):
    at = [0]
    for c in text:
        at.append(at[-1] + len(c.encode()))
    return [[at[b], at[e]] for b, e in offsets]


def main():
    here = pathlib.Path(__file__).resolve().parents[2]
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "tests/unit/text/tokenizer_goldens"
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(20260101)
    lines = corpus(rng)
    strings = nasty_strings(rng)
    dump = lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    escaped = lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    (folder / "strings.json").write_text("[\n" + ",\n".join(map(escaped, strings)) + "\n]\n")
    for name, data in all_tokenizers(lines):
        tokenizer = Tokenizer.from_str(json.dumps(data))
        rows = []
        for text in strings:
            plain = tokenizer.encode(text, add_special_tokens=False)
            with_special = tokenizer.encode(text, add_special_tokens=True)
            ids = with_special.ids
            before = next(i for i in range(len(ids) + 1) if ids[i : i + len(plain.ids)] == plain.ids)
            offsets = byte_offsets(text, plain.offsets)
            rows.append([
                plain.ids, [x for pair in offsets for x in pair], ids[:before], ids[before + len(plain.ids) :],
                tokenizer.decode(ids, skip_special_tokens=True), tokenizer.decode(ids, skip_special_tokens=False)])
        for text, row in zip(strings, rows):  # most texts come back as they were: said with a 0
            row[4:] = [0 if decoded == text else decoded for decoded in row[4:]]
        (folder / f"{name}.tokenizer.json").write_text(dump(data) + "\n")
        body = ",\n".join(escaped(row) for row in rows)
        (folder / f"{name}.expected.json").write_text(
            f'{{"made_with":"tokenizers {tokenizers.__version__}",\n"rows":[\n{body}\n]}}\n')
        print(f"{name}: {len(data['model']['vocab'])} tokens, {len(data['model']['merges'])} merges")


if __name__ == "__main__":
    main()
