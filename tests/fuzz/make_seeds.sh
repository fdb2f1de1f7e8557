#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: make_seeds.sh FOLDER    writes the inputs that the fuzzers start from
set -eu
out=$1

# seed KIND NAME: standard input becomes FOLDER/KIND/NAME
seed() {
  mkdir -p "$out/$1"
  cat > "$out/$1/$2"
}

printf '{"a": [1, -2.5e3, true, false, null, "x\\u00e9\\ud83d\\ude00"], "a": {"b": {}}}' | seed json value
printf '{"text": "one"}\r\n\n{"text": "two"}\n[1, 2' | seed json lines
printf '\357\273\277{"k": 18446744073709551616, "deep": [[[[[[[[]]]]]]]]}' | seed json mark
printf '"\303\251\355\240\200"' | seed json broken_utf8

printf '{"text": "one"}\r\n\n{"text": "two"}\n{"prompt": 1, "completion": ["x"]}\n{' | seed rows lines
printf '[{"text": "one"},\n {"text": "two"}, 3, {"a": [1, {"b": "]"}]}\n]' | seed rows array
printf '\357\273\277prompt,completion\r\n"a ""b"", c","d\ne"\r\nf,g,h\n\n"open' | seed rows table

# tensors NAME HEADER DATA: a file whose length field is right (headers here are < 256 bytes)
tensors() {
  { printf "\\$(printf '%03o' "${#2}")\\000\\000\\000\\000\\000\\000\\000"; printf '%s%s' "$2" "$3"; } |
    seed safetensors "$1"
}

tensors empty '{}' ''
tensors one '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}' '12345678'
tensors two '{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}' '12345678'
tensors overlap '{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"I8","shape":[4],"data_offsets":[2,6]}}' '123456'
tensors huge '{"a":{"dtype":"F64","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,18446744073709551615]}}' ''
tensors odd '{"a":{"dtype":"F4","shape":[2,0,1,1,1],"data_offsets":[0,0]}}' ''

# tokenizer NAME COMPONENTS MODEL TEXT: JSON, a zero byte, and a text to encode
tokenizer() {
  { printf '{"added_tokens":[{"id":9,"content":"<s>","special":true},{"id":10,"content":"w","single_word":true,"lstrip":true,"rstrip":true,"normalized":true}],%s,"model":{"type":"BPE",%s}}\000' "$2" "$3"
    printf '%s' "$4"; } | seed tokenizer "$1"
}

bytes='"vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ġa":4,"Ã":5,"©":6,"Ã©":7},"merges":["a b",["Ġ","a"],"Ã ©"]'
pieces='"unk_token":"<unk>","byte_fallback":true,"fuse_unk":true,"vocab":{"<unk>":0,"▁":1,"a":2,"▁a":3,"<0xC3>":4,"<0xA9>":5,"b":6},"merges":[["▁","a"]]'
bare='"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]'
tokenizer gpt2 '"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true},"decoder":{"type":"ByteLevel"},"post_processor":{"type":"ByteLevel"}' "$bytes" " a<s> ab é w  b'S 12"
tokenizer llama3 '"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'"'"'s|'"'"'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"decoder":{"type":"ByteLevel"},"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[9]}}}' "\"ignore_merges\":true,$bytes" "ab  ab
a"
tokenizer spm '"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]},"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":1}]}' "$pieces" 'a éb 漢w'
tokenizer metaspace '"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true},"decoder":{"type":"Metaspace","replacement":"▁"},"post_processor":{"type":"BertProcessing","sep":["w",10],"cls":["<s>",9]}' "$pieces" 'a éb <s> a'
tokenizer plain '"normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"NFD"},{"type":"Lowercase"},{"type":"StripAccents"},{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Replace","pattern":{"Regex":"[a-z&&[^b]]{,2}+"},"content":"b"}]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Whitespace"},{"type":"Digits","individual_digits":true},{"type":"Punctuation","behavior":"MergedWithPrevious"},{"type":"WhitespaceSplit"},{"type":"ByteLevel","add_prefix_space":true},{"type":"Split","pattern":{"String":"Ġ"},"behavior":"MergedWithNext","invert":true}]},"decoder":null' "\"end_of_word_suffix\":\"\",$bare" 'Áb ab, 1２ ﬁ'

# Chat templates: every snippet of the goldens, and the whole templates of the tests.
here=$(dirname "$0")
mkdir -p "$out/template"
awk -v out="$out/template" '
  /^=== / { if (file) close(file); file = sprintf("%s/snippet%03d", out, ++n); next }
  file { print > file }' "$here/../../tools/golden/template_snippets.txt"
for template in "$here"/../unit/text/templates/*.jinja; do
  seed template "$(basename "$template")" < "$template"
done
