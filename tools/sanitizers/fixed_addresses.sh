#!/bin/sh
# Runs a test without address randomization: GCC 12's sanitizers abort
# ("unexpected memory mapping") on kernels that randomize with more than 28
# bits. Where personality(2) is forbidden, the test runs as it is.
if setarch --addr-no-randomize true 2>/dev/null; then
  exec setarch --addr-no-randomize "$@"
fi
exec "$@"
