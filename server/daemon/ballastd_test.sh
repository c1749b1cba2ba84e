#!/bin/bash
# The two programs against each other: start, ask, refuse, drain, restart.
set -u
ballastd=$TEST_SRCDIR/$TEST_WORKSPACE/server/daemon/ballastd
ballastctl=$TEST_SRCDIR/$TEST_WORKSPACE/client/ctl/ballastctl
# Short: a socket's path has at most 107 bytes.
dir=$(mktemp -d /tmp/ballastd_test.XXXXXX)
log=$dir/log
daemon=
trap '[ -n "$daemon" ] && kill -9 "$daemon" 2>/dev/null; rm -rf "$dir"' EXIT

fail() {
  echo "FAILED: $*" >&2
  cat "$log" >&2
  exit 1
}

flags=(--set "listen.workers=unix://$dir/w.sock"
       --set "listen.admin=unix://$dir/a.sock"
       --set listen.http=127.0.0.1:0 --set listen.health=127.0.0.1:0
       --set listen.peer=127.0.0.1:0)
ctl() { "$ballastctl" --address "unix://$dir/a.sock" "$@"; }

start() {
  : >"$log"
  (ulimit -Sn 256 && exec "$ballastd" "${flags[@]}" 2>"$log") &
  daemon=$!
  for _ in $(seq 600); do
    grep -q ' listening ' "$log" && return
    kill -0 "$daemon" 2>/dev/null || fail "the daemon did not start"
    sleep 0.05
  done
  fail "the daemon does not listen"
}

# stop CODE COMMAND…: ends the daemon by COMMAND, which must exit with CODE.
stop() {
  local want=$1 code
  shift
  "$@" || fail "$* failed"
  wait "$daemon" 2>/dev/null
  code=$?
  daemon=
  [ "$code" = "$want" ] || fail "exit code $code after: $*"
}

no_sockets() { [ ! -e "$dir/w.sock" ] && [ ! -e "$dir/a.sock" ]; }

# Addresses are in one line, chosen ports filled in, and in the status.
start
grep -Eq "listening workers=unix://$dir/w.sock admin=unix://$dir/a.sock http=127.0.0.1:[1-9][0-9]* health=127.0.0.1:[1-9][0-9]* peer=127.0.0.1:[1-9][0-9]*$" \
  "$log" || fail "no line with all addresses"
http=$(sed -n 's/.* http=\([^ ]*\) .*/\1/p' "$log")
ctl status | grep -q "http://$http/metrics" || fail "status without metrics"
ctl --json status | grep -q '"state": "serving"' || fail "status as JSON"
ctl jobs | grep -q '^JOB' || fail "jobs"
ctl version | grep -q '^version' || fail "version"
ctl job nobody 2>/dev/null; [ $? = 4 ] || fail "an unknown job is code 4"
ctl top 2>/dev/null; [ $? = 5 ] || fail "a later verb is code 5"
ctl doctor | grep -q '^warning  daemon keeper .*ends its jobs$' ||
  fail "the doctor misses no keeper"
ctl --json doctor | grep -q '"check": "keeper"' || fail "doctor as JSON"
for verb in evict quota priority plan top; do
  for more in "gpt2" "gpt2 --force --to=5" "status --json"; do
    # shellcheck disable=SC2086
    text=$(ctl $verb $more 2>&1); [ $? = 5 ] || fail "$verb $more is code 5"
    [[ $text == *"is not there yet: "* ]] || fail "$verb $more: $text"
  done
done
for address in foo "" tcp://x:1 unix:// host:0; do
  text=$("$ballastctl" --address "$address" status 2>&1)
  [ $? = 2 ] || fail "address \"$address\" is code 2"
  [[ $text == *"unix:///path or host:port"* ]] || fail "address: $text"
done
soft=$(awk '/^Max open files/ { print $4 }' "/proc/$daemon/limits")
[ "$soft" = "$(ulimit -Hn)" ] || fail "the limit of open files is $soft"
ctl 2>/dev/null >&2; [ $? = 2 ] || fail "no verb is code 2"
exec 3<>"/dev/tcp/${http%:*}/${http##*:}" || fail "no metrics page"
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
grep -q '^ballast_jobs{state="running"} 0' <&3 || fail "no metrics"
exec 3>&-

# A second daemon is refused and harms nobody.
"$ballastd" "${flags[@]}" 2>"$dir/second" && fail "two daemons on one socket"
grep -q "serves $dir/w.sock" "$dir/second" || fail "no reason for the refusal"
ctl status >/dev/null || fail "the first daemon suffered"

# SIGTERM drains; SIGKILL leaves nothing that hinders the next (I28).
stop 0 kill -TERM "$daemon"
no_sockets || fail "sockets left after a drain"
ctl status 2>/dev/null; [ $? = 3 ] || fail "nobody there is code 3"
start
stop 137 kill -KILL "$daemon"
start
stop 0 ctl drain
no_sockets || fail "sockets left after ballastctl drain"

# Usage.
"$ballastd" --set compute.thread=1 2>"$dir/usage"
[ $? = 2 ] || fail "an unknown key is code 2"
grep -q 'compute.threads' "$dir/usage" || fail "no nearest key"
"$ballastd" --print-config | grep -q 'bucket_bytes: 5MiB' || fail "print-config"
"$ballastd" --version | grep -q '^ballastd ' || fail "version"
echo PASSED
