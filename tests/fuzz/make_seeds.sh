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
