#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: check_deps_test.sh CHECK_DEPS    shows that the check finds each kind of offence
set -eu
check=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/src/base" "$tree/src/io" "$tree/src/text" "$tree/include/wick"

fresh() {
  printf 'base:            # ground\nio: base\ntext: base io   # words\n' > "$tree/src/deps.txt"
  printf '#include <vector>\n#include "wick/a.h"\n' > "$tree/src/base/a.h"
  printf '#include "base/a.h"\n  #  include "io/b.h"\n// #include "text/c.h"\n' > "$tree/src/io/b.cpp"
  printf '#include "io/b.h"\n' > "$tree/src/text/c.cpp"
  printf '#include "wick/b.h"\n' > "$tree/include/wick/a.h"
}

expect_offence() {
  if output=$(sh "$check" "$tree"); then echo "not found: $1"; exit 1; fi
  case $output in *"$1"*) ;; *) echo "wanted: $1"; echo "got: $output"; exit 1 ;; esac
  fresh
}

fresh
sh "$check" "$tree" || { echo "a clean tree was refused"; exit 1; }
echo '#include "text/c.h"' >> "$tree/src/io/b.cpp";    expect_offence 'src/io/b.cpp:4: #include "text/c.h"  (io may not include text)'
echo '#include "c.h"' >> "$tree/src/text/c.cpp";       expect_offence 'src/text/c.cpp:2:'
echo '#include "base/a.h"' >> "$tree/include/wick/a.h"; expect_offence 'include/wick/a.h:2:'
echo 'data: base nn' >> "$tree/src/deps.txt";          expect_offence 'data names nn'
echo 'io: base' >> "$tree/src/deps.txt";               expect_offence 'io is listed twice'
sed -i.old '/^text/d' "$tree/src/deps.txt";            expect_offence 'the folder text has no line'
seq 601 > "$tree/src/text/c.cpp";                      expect_offence '601 lines'
