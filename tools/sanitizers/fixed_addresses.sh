#!/bin/sh
# Runs a test without address randomization: GCC 12's sanitizers abort
# ("unexpected memory mapping") on kernels that randomize with more than 28
# bits. Where personality(2) is forbidden, the test runs as it is. Under the
# thread sanitizer, with absl_mutex.c.
without_randomization=
if setarch --addr-no-randomize true 2>/dev/null; then
  without_randomization="setarch --addr-no-randomize"
fi
if [ -n "${TSAN_OPTIONS:-}" ]; then
  LD_PRELOAD="$PWD/tools/sanitizers/absl_mutex.so${LD_PRELOAD:+:$LD_PRELOAD}"
  export LD_PRELOAD
fi
exec $without_randomization "$@"
