#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: check_deps.sh [ROOT]
# Checks the layers of ROOT/src against ROOT/src/deps.txt: a file includes only its own folder, the
# folders on its folder's line, and "wick/…"; a line names only folders above it; public headers
# include no private ones; no file is longer than 600 lines. Prints each offence; exits 1 if any.
set -u
root=${1:-.}
cd "$root" || exit 2
[ -f src/deps.txt ] || { echo "check_deps: no src/deps.txt in $root"; exit 2; }

find src include -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \
  -o -name '*.mm' -o -name '*.metal' -o -name '*.inc' \) 2>/dev/null | LC_ALL=C sort > "${TMPDIR:-/tmp}/check_deps.$$"
trap 'rm -f "${TMPDIR:-/tmp}/check_deps.$$"' EXIT

LC_ALL=C awk -v list="${TMPDIR:-/tmp}/check_deps.$$" '
function complain(text) { print text; bad = 1 }

function read_deps(file,    line, number, count, words, i, folder) {
  while ((getline line < file) > 0) {
    number++
    sub(/#.*/, "", line)
    if (line !~ /[^ \t]/) continue
    if (line !~ /^[a-z_]+:/) { complain(file ":" number ": not \"folder: folders\": " line); continue }
    folder = line; sub(/:.*/, "", folder); sub(/^[^:]*:/, "", line)
    if (folder in known) complain(file ":" number ": " folder " is listed twice")
    count = split(line, words, " ")
    for (i = 1; i <= count; i++) {
      if (!(words[i] in known)) complain(file ":" number ": " folder " names " words[i] ", which is not a folder above it")
      allowed[folder, words[i]] = 1
    }
    known[folder] = 1
    allowed[folder, folder] = 1
  }
}

function check(path,    parts, folder, public, line, number, target, to) {
  split(path, parts, "/")
  public = parts[1] == "include"
  folder = parts[2]
  if (!public && path !~ /^src\/[^\/]*\//) { complain(path ": every source file lies in a folder of src/"); return }
  if (!public && !(folder in known)) complain(path ": the folder " folder " has no line in src/deps.txt")
  while ((getline line < path) > 0) {
    number++
    if (line !~ /^[ \t]*#[ \t]*include[ \t]*"/) continue
    target = line
    sub(/^[^"]*"/, "", target); sub(/".*/, "", target)
    to = target
    if (!sub(/\/.*/, "", to)) { complain(path ":" number ": " line "  (write it as \"folder/file\")"); continue }
    if (to == "wick") continue
    if (public) complain(path ":" number ": " line "  (a public header includes only \"wick/…\")")
    else if (!((folder, to) in allowed)) complain(path ":" number ": " line "  (" folder " may not include " to ")")
  }
  close(path)
  if (number > 600) complain(path ": " number " lines, at most 600; split it by responsibility")
}

BEGIN {
  read_deps("src/deps.txt")
  while ((getline path < list) > 0) { check(path); files++ }
  if (!files) complain("no source files found")
  exit bad
}'
