#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wick beside PyTorch + PEFT, llama.cpp and MLX: same weights, same token ids, engines in turn.
# Writes bench/results, docs/benchmarks.md and README.md's table of speeds.
#
#   tools/compare.sh cpu             five rounds, about half an hour once the peers are installed
#   tools/compare.sh cpu --quick     two short rounds, about ten minutes
#   tools/compare.sh cuda            one NVIDIA GPU: training by size, decoding; five rounds
#   tools/compare.sh cuda --quick    two rounds, without the larger models
#
#   --out FILE       where the results go; docs/benchmarks.md and README.md are written only without it
#   --rounds N       rounds (5; 2 with --quick)
#   --only PATTERNS  some cases only, with commas: 'decode/*', 'train/wick-*', bench, and for cpu
#                    bench/qwen2.5-3b, for cuda groups such as train-1x512
#   --tables NAMES   of wick bench only these, such as lora,merge (--only bench; for cpu with --add)
#   --resume         keep what was measured with the same commit, versions and settings
#   --seconds N      stop after that long; go on with --resume
#   --wick BINARY    this binary instead of building one
#   --venv FOLDER    where the peers are or get installed (WICK_COMPARE_VENV; out/compare/venv)
#
# cpu:
#   --threads N      threads of every engine (2)
#   --add            what is measured joins the results that are there, or takes its place in them
#   --cache FOLDER   where the built llama.cpp is kept (WICK_COMPARE_CACHE; out/compare/cache)
#   --jobs N         compilers at a time when llama.cpp is built (all cores)
#   --install-only   install and build the peers, measure nothing
#
# cuda:
#   --python PYTHON      an interpreter that has torch, transformers and PEFT; nothing is installed
#   --mlx-python PYTHON  one that has MLX for CUDA and mlx-lm; without it MLX is not run
#   --parallel N         peers that warm up at a time (4)
#   --commit HASH        of wick, where this tree is no checkout
#   --folder FOLDER      for models, logs and compiled code (out/compare/cuda)
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/install.sh

usage() { sed -n '/^#   tools/,/^set /s/^# \{0,1\}//p' "$0"; }
llama_version=0.3.36
venv=${WICK_COMPARE_VENV:-out/compare/venv} cache=${WICK_COMPARE_CACHE:-out/compare/cache}
wick='' out='' jobs=$(cores) install_only=0 pass=()
case ${1:-} in
  cpu) shift ;;
  cuda) shift; exec tools/compare/cuda.sh "$@" ;;
  -h | --help) usage; exit 0 ;;
  *) complain "give the device to compare on: cpu or cuda"; usage >&2; exit 2 ;;
esac
while [ $# -gt 0 ]; do
  case $1 in
    --quick | --resume | --add) pass+=("$1") ;;
    --install-only) install_only=1 ;;
    --threads | --rounds | --only | --tables | --seconds) pass+=("$1" "${2:?$1 needs a value}"); shift ;;
    --out) out=${2:?--out needs a file}; shift ;;
    --wick) wick=${2:?--wick needs a file}; shift ;;
    --venv) venv=${2:?--venv needs a folder}; shift ;;
    --cache) cache=${2:?--cache needs a folder}; shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) complain "unknown argument $1"; usage >&2; exit 2 ;;
  esac
  shift
done
mkdir -p out/compare "$cache"
venv=$(realpath -m "$venv") cache=$(realpath "$cache")

has() {
  "$python" -c "import importlib.metadata as m; exit(m.version('$1') != '$2')" 2>/dev/null
}
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

# llama-cpp-python without its library, and the library built from the sources inside it: natively,
# and only what inference needs. It is for this processor only, so the cache has a folder for each.
install_llama() {
  local key sources
  has llama-cpp-python $llama_version ||
    CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install --quiet --no-binary llama-cpp-python \
      "llama-cpp-python==$llama_version" || return
  key=$(grep -m1 '^flags' /proc/cpuinfo 2>/dev/null || sysctl -n machdep.cpu.brand_string)
  llama=$cache/llama-$llama_version-$(printf '%s' "$key" | cksum | cut -d' ' -f1)
  if [ -d "$llama" ]; then return; fi
  say "building llama.cpp for this machine with $jobs jobs; this takes minutes, once"
  sources=$(mktemp -d)
  pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$sources" \
    "llama-cpp-python==$llama_version" &&
    tar -xzf "$sources"/llama_cpp_python-*.tar.gz -C "$sources" --strip-components=1 &&
    CXXFLAGS="-include $PWD/tools/compare/tile_config.h" cmake -S "$sources/vendor/llama.cpp" \
      -B "$sources/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON \
      -DGGML_LLAMAFILE=ON -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF \
      -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_CURL=OFF \
      -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN' >"$sources/log" 2>&1 &&
    cmake --build "$sources/build" --target llama --parallel "$jobs" >>"$sources/log" 2>&1 &&
    mkdir -p "$llama.part" && cp -a "$sources"/build/bin/lib* "$llama.part" &&
    mv "$llama.part" "$llama" || { tail -20 "$sources/log" >&2; return 1; }
  rm -rf "$sources"
}

[ -x "$venv/bin/python" ] || {
  [ "$(uname)" = Darwin ] || install_packages python3-venv
  python3 -m venv "$venv"
}
python=$venv/bin/python
stamp=$venv/installed
if ! cmp -s tools/compare/requirements.txt "$stamp"; then
  say "installing the packages of tools/compare/requirements.txt into $venv"
  torch=$(grep '^torch==' tools/compare/requirements.txt)
  # The build for CPUs is a tenth of the size; any index serves where that one is out of reach.
  has torch "${torch#torch==}" ||
    pip install --quiet --retries 0 --timeout 15 "$torch" \
      --index-url https://download.pytorch.org/whl/cpu 2>/dev/null ||
    pip install --quiet "$torch"
  pip install --quiet -r tools/compare/requirements.txt
  cp tools/compare/requirements.txt "$stamp"
fi
llama=''
install_llama || complain "llama-cpp-python could not be built; its cases are left out"

shim='' mkl_shim=''
if [ "$(uname -sm)" = 'Linux x86_64' ]; then
  shim=$PWD/out/compare/cpuid_shim.so
  cc -O2 -shared -fPIC -o "$shim" tools/compare/cpuid_shim.c -ldl
  if ! grep -q GenuineIntel /proc/cpuinfo; then
    mkl_shim=$PWD/out/compare/mkl_shim.so
    cc -O2 -shared -fPIC -o "$mkl_shim" tools/compare/mkl_shim.c
  fi
fi
if [ "$install_only" = 1 ]; then exit 0; fi
if [ -z "$wick" ]; then
  install_packages "${build_packages[@]}"
  say "building wick"
  build release wick_cli
  wick=build/wick
fi
say "making the model"
"$python" tools/compare/make_model.py out/compare
status=0
LLAMA_CPP_LIB_PATH=$llama "$python" tools/compare/run.py --folder out/compare \
  --wick "$(realpath "$wick")" --shim "$shim" --mkl-shim "$mkl_shim" \
  ${out:+--out "$out"} "${pass[@]}" || status=$?
if [ -z "$out" ] && [ $status -ne 1 ]; then python3 tools/compare/table.py; fi
exit $status
