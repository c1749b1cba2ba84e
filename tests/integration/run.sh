#!/bin/sh
# Runs one test file with the distribution's Python: under Bazel, where what
# it needs lies beside it, or by hand with the variables of tools/env.
set -eu
root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
: "${BALLASTD=$root/server/daemon/ballastd}"
: "${BALLASTCTL=$root/client/ctl/ballastctl}"
: "${BALLAST_KEEPER=$root/server/keeper/ballast-keeper}"
: "${BALLASTD_FAILPOINTS=$root/server/daemon/ballastd_failpoints}"
: "${BALLAST_FAILPOINT_NAMES=$root/server/daemon/failpoint_names.txt}"
: "${BALLAST_LIBRARY=$root/client/capi/libballast.so}"
BALLAST_TRAIN_GPT="$root/client/python/examples/train_gpt.py"
PYTHONPATH="$root/client/python:$root/tests/golden:$root/tests/integration"
PYTHONDONTWRITEBYTECODE=1
export BALLASTD BALLASTCTL BALLAST_KEEPER BALLAST_LIBRARY BALLAST_TRAIN_GPT \
  BALLASTD_FAILPOINTS BALLAST_FAILPOINT_NAMES PYTHONPATH PYTHONDONTWRITEBYTECODE
exec timeout -k 10 "${TEST_TIMEOUT:-600}" /usr/bin/python3 "$root/tests/integration/$1"
