#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The part of tools/compare.sh for NVIDIA GPUs; started by it, from the top of the tree.
set -euo pipefail
source tools/install.sh

usage() { sed -n '/^#   tools/,/^set /s/^# \{0,1\}//p' tools/compare.sh; }
venv=${WICK_COMPARE_CUDA_VENV:-out/compare/venv-cuda} python='' mlx_python='' wick='' out=''
pass=() folder=out/compare/cuda
while [ $# -gt 0 ]; do
  case $1 in
    --quick | --resume) pass+=("$1") ;;
    --rounds | --only | --tables | --seconds | --commit | --parallel | --device | --source)
      pass+=("$1" "${2:?$1 needs a value}"); shift ;;
    --out) out=${2:?--out needs a file}; shift ;;
    --wick) wick=${2:?--wick needs a file}; shift ;;
    --python) python=${2:?--python needs a file}; shift ;;
    --mlx-python) mlx_python=${2:?--mlx-python needs a file}; shift ;;
    --venv) venv=${2:?--venv needs a folder}; shift ;;
    --folder) folder=${2:?--folder needs a folder}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) complain "unknown argument $1"; usage >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$folder"

if [ -z "$python" ]; then
  [ -x "$venv/bin/python" ] || { install_packages python3-venv; python3 -m venv "$venv"; }
  python=$venv/bin/python
  if ! cmp -s tools/compare/requirements-cuda.txt "$venv/installed"; then
    say "installing the packages of tools/compare/requirements-cuda.txt into $venv"
    "$python" -m pip --disable-pip-version-check install --quiet \
      -r tools/compare/requirements-cuda.txt
    cp tools/compare/requirements-cuda.txt "$venv/installed"
  fi
  mlx_python=${mlx_python:-$python}
fi
if [ -z "$wick" ]; then
  install_packages "${build_packages[@]}"
  say "building wick"
  build release wick_cli
  wick=build/wick
fi
status=0
"$python" -u tools/compare/cuda_run.py --folder "$folder" --wick "$wick" \
  ${mlx_python:+--mlx-python "$mlx_python"} ${out:+--out "$out"} "${pass[@]}" || status=$?
if [ -z "$out" ] && [ $status -ne 1 ]; then "$python" tools/compare/table.py; fi
exit $status
