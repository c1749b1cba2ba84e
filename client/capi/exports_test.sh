#!/bin/sh
# libballast.so exports the functions of ballast.h and nothing else.
#   exports_test.sh LIBRARY HEADER
set -eu
exported=$(nm -D --defined-only "$1" | awk '{print $3}' | sort)
declared=$(grep -oE '\bballast_[a-z0-9_]+\(' "$2" | tr -d '(' | sort -u)
if [ "$exported" != "$declared" ]; then
  echo "exported:" $exported
  echo "declared:" $declared
  exit 1
fi
# Negative control: the check sees symbols at all, and would see others.
[ "$(nm -D --undefined-only "$1" | grep -c grpc)" -gt 0 ]
[ "$(echo "$exported" | grep -c '^ballast_open$')" = 1 ]
