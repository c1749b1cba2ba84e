"""Ranks that die often: each life is a process of its own, forked from one
that has imported everything, so that it begins in milliseconds.

    with nursery.Nursery(folder) as ranks:
        life = ranks.start(rank=0, world=2, address=…, steps=9)
        life.kill()

A life trains the job of job.py and writes what it sees, a line each, to its
record: open STEP CURSOR, step STEP VERSION DIGEST NORM, end STEP DIGEST, or
error TEXT. A line is whole or not there, whatever kills the process.
"""

import ctypes
import hashlib
import json
import os
import select
import signal
import subprocess
import sys

# Of `prctl`: dies with the nursery.
_PR_SET_PDEATHSIG = 1


class Life:
    """One process that is, or was, a rank."""

    def __init__(self, pid, path, is_to_die=False):
        self.pid, self.path = pid, path
        self.is_to_die = is_to_die  # or was killed
        self._pidfd = os.pidfd_open(pid)

    def is_alive(self):
        return not select.select([self._pidfd], [], [], 0)[0]

    def signal(self, number):
        """To this process and no other that has its number."""
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            pass

    def kill(self):
        self.is_to_die = True
        self.signal(signal.SIGKILL)
        select.select([self._pidfd], [], [], 60)

    def lines(self, kind):
        """The record's lines of a kind, split, without it."""
        with open(self.path, encoding="utf-8") as stream:
            lines = [line.split() for line in stream]
        return [line[1:] for line in lines if line[0] == kind]

    def close(self):
        os.close(self._pidfd)


class Nursery:
    """Starts lives; ends those that are left."""

    def __init__(self, folder):
        self._folder = folder
        self._count = 0
        self._lives = []
        self._parent = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_unused):
        for life in self._lives:
            if life.is_alive():
                life.kill()
            life.close()
        self._parent.stdin.close()
        self._parent.wait(60)
        self._parent.stdout.close()

    def start(self, **options):
        """See _live for the options."""
        self._count += 1
        options["record"] = os.path.join(self._folder, "%d.txt" % self._count)
        with open(options["record"], "wb"):
            pass
        self._parent.stdin.write(json.dumps(options) + "\n")
        self._parent.stdin.flush()
        life = Life(int(self._parent.stdout.readline()), options["record"],
                    is_to_die=bool(options.get("die_at")))
        self._lives.append(life)
        return life


# ---- In the processes that are started. ----


def _digest(session):
    digest = hashlib.sha256()
    for name in sorted(session.params):
        digest.update(session.params[name].tobytes())
    return digest.hexdigest()[:32]


def _live(say, rank, world, address, steps=0, stop="", exchange="exact",
          workers=0, coordinator="", name="job", disagree_at=0, die_at=0,
          pause=0.0, save_at=()):
    """Trains to step `steps`, or to the one that the file `stop` names once it
    is there. disagree_at: a step that this rank calls with another learning
    rate, until it is told; die_at: one in which it dies after it has pushed
    something; save_at: steps after which it saves a snapshot called last."""
    import time
    import ballast
    import job
    workers = workers or world
    session = ballast.Session(
        job=name, tensors=job.initial(), bucket_bytes=8192, timeout=120,
        optimizer=dict(name="adamw", lr=0.01, betas=(0.9, 0.95), eps=1e-8,
                       weight_decay=0.1),
        gradient_clipping=1.0, exchange=exchange, address=address,
        coordinator=coordinator or None, rank=rank, world_size=world,
        local_rank=rank % workers, local_world_size=workers,
        node_rank=rank // workers)
    expected = "after %d" % (session.open_step - 1)
    if session.open_step > 1 and session.cursor.decode() != expected:
        raise AssertionError("cursor %r, not %r" % (session.cursor, expected))
    say("open", session.open_step)
    while True:
        step = session.open_step
        if not steps and os.path.exists(stop):
            with open(stop, encoding="ascii") as stream:
                steps = int(stream.read())
            if step > steps + 1:
                raise AssertionError("step %d is open already" % step)
        if steps and step > steps:
            break
        job.fill(session, step)
        rate = job.learning_rate(step)
        session.param_groups[0]["lr"] = \
            rate / 2 if step == disagree_at else rate
        session.push("head")
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(pause)
        try:
            result = session.step(cursor=b"after %d" % step)
        except ballast.Error as error:
            if error.resume_step is None:
                raise
            disagree_at = 0
            continue
        say("step", result.step, result.weight_version, _digest(session),
            result.grad_norm.hex())
        while step in save_at:
            try:
                session.save("last")
                break
            except ballast.Unavailable:  # the daemon died meanwhile
                pass
    say("end", session.open_step - 1, _digest(session))
    session.close()
    say("closed")


def _child(options):
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    record = os.open(options.pop("record"), os.O_WRONLY | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # "job … goes on"

    def say(*words):
        os.write(record, (" ".join(map(str, words)) + "\n").encode())

    try:
        _live(say, **options)
        os._exit(0)
    except BaseException as error:  # pylint: disable=broad-except
        say("error", repr(error).replace("\n", " "))
        os._exit(1)


def _main():
    import ballast  # pylint: disable=unused-import
    import job  # pylint: disable=unused-import
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        options = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(options)
        print(pid, flush=True)


if __name__ == "__main__":
    _main()
