#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills one run of `wick train` with SIGKILL N times at random moments and another N times while a checkpoint is
# being written, resumes each time, and compares the results' bytes with those of undisturbed runs.
#   tools/kill_test.sh [N] [--device cpu|cuda] [--build FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
kills=50 device=cpu build=build
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    *) kills=$1; shift ;;
  esac
done
WICK_KILLS=$kills WICK_DEVICE=$device "$build/cli_kill_test"
