#!/bin/sh
# Runs one unittest file with the distribution's Python, under Bazel or by
# hand: run.sh tests/FILE_test.py
set -eu
cd "$(dirname -- "$0")"
[ ! -d ../ballast ] || cd ..
PYTHONPATH="$PWD:$PWD/tests" PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH PYTHONDONTWRITEBYTECODE
file=$1
shift
exec /usr/bin/python3 -W error::ResourceWarning "$file" -v "$@"
