"""Where labs are written down, so that each can be found and removed by its
id, also after a crash.

/tmp/ballast-lab-ID is the lab's folder, or a link to it where the caller
chose another ($BALLAST_LAB_DIR). The folder holds the state, lab.json, while
the lab is there, and pids and logs, which stay.

Threading: none. Safety: /tmp is everybody's, so only folders and files of this
user count; a process is known by its pid and its start time.
"""

import json
import os
import random
import shutil
import signal
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Optional

import network

_STATE = "lab.json"
_ROOT = "/tmp"
_PREFIX = "ballast-lab-"
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_END_SECONDS = 30.0
# sockaddr_un has 108 bytes for a path.
_MAX_SOCKET_FOLDER = 80


class NoSuchLab(Exception):
    """Says what was looked for."""


class Busy(Exception):
    """The folder belongs to a lab that runs."""


@dataclass
class Lab:
    """One lab. `nodes` has what `exec` needs: the environment of each."""
    lab_id: str
    directory: str
    sockets: str
    rate: str = ""
    pid: int = 0
    start: int = 0
    nodes: List[Dict[str, Any]] = field(default_factory=list)

    def save(self) -> None:
        path = os.path.join(self.directory, _STATE)
        with open(path + ".new", "w", encoding="utf-8") as stream:
            json.dump(asdict(self), stream, indent=1)
        os.replace(path + ".new", path)

    def owner_runs(self) -> bool:
        return self.pid != 0 and start_time(self.pid) == self.start


def start_time(pid: int) -> Optional[int]:
    """When the process started, in the kernel's ticks; None if it is gone."""
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8",
                  errors="replace") as stream:
            fields = stream.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _entry(lab_id: str) -> str:
    return os.path.join(_ROOT, _PREFIX + lab_id)


def _sockets(lab_id: str) -> str:
    """Where a lab has its sockets whose folder has too long a name."""
    return _entry(lab_id) + ".sockets"


def _is_ours(path: str) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return False


def claim(directory: Optional[str], rate: str) -> Lab:
    """A new lab with an id that nobody uses, owned by this process. Its
    folder is `directory`, which is made if missing. What a killed lab left
    there is removed first; raises Busy if one still runs."""
    if directory:
        directory = os.path.abspath(directory)
        os.makedirs(directory, exist_ok=True)
        _replace_old(directory)
    while True:
        lab_id = "".join(random.SystemRandom().choices(_ALPHABET, k=5))
        try:
            if directory:
                os.symlink(directory, _entry(lab_id))
            else:
                os.mkdir(_entry(lab_id), 0o700)
            break
        except FileExistsError:
            pass
    lab = Lab(lab_id, directory or _entry(lab_id), "", rate)
    lab.sockets = lab.directory
    if len(os.fsencode(lab.directory)) > _MAX_SOCKET_FOLDER:
        lab.sockets = _sockets(lab_id)
        os.mkdir(lab.sockets, 0o700)
    own(lab)
    return lab


def own(lab: Lab) -> None:
    """This process is the one to end for the lab to end."""
    lab.pid, lab.start = os.getpid(), start_time(os.getpid()) or 0
    lab.save()


def _replace_old(directory: str) -> None:
    if not os.path.exists(os.path.join(directory, _STATE)):
        return
    old = in_folder(directory)
    if old.owner_runs():
        raise Busy("lab %s runs in %s (process %d); tools/lab down %s ends it"
                   % (old.lab_id, directory, old.pid, old.lab_id))
    clean(old)


def in_folder(directory: str) -> Lab:
    """The lab whose folder this is."""
    path = os.path.join(directory, _STATE)
    if not _is_ours(path):
        raise NoSuchLab("no lab of this user in %s" % directory)
    with open(path, encoding="utf-8") as stream:
        lab = Lab(**json.load(stream))
    if network.ID_PATTERN.match(lab.lab_id) is None:
        raise NoSuchLab("%s is not a lab's state" % path)
    return lab


def find(lab_id: str) -> Lab:
    """The lab with this id."""
    entry = _entry(lab_id)
    if network.ID_PATTERN.match(lab_id) and _is_ours(entry):
        try:
            lab = in_folder(os.path.realpath(entry))
        except NoSuchLab:
            lab = None
        if lab is not None and lab.lab_id == lab_id:
            return lab
    raise NoSuchLab("no lab %s" % lab_id)


def all_ids() -> List[str]:
    """The ids of this user's labs."""
    ids = []
    for name in sorted(os.listdir(_ROOT)):
        if name.startswith(_PREFIX):
            try:
                ids.append(find(name[len(_PREFIX):]).lab_id)
            except NoSuchLab:
                pass
    return ids


def clean(lab: Lab) -> None:
    """Removes all that the lab has, logs excepted. Idempotent."""
    try:
        if lab.rate:
            network.remove(lab.lab_id)
    finally:
        if lab.sockets != lab.directory:
            shutil.rmtree(lab.sockets, ignore_errors=True)
    for path in (os.path.join(lab.directory, _STATE), _entry(lab.lab_id)):
        if os.path.islink(path) or os.path.isfile(path):
            os.remove(path)


def clean_by_name(lab_id: str) -> bool:
    """The same for a lab whose state is lost: what the id names. False if
    there was nothing."""
    if network.ID_PATTERN.match(lab_id) is None:
        return False
    found = bool(network.of_lab(lab_id, network.namespaces()))
    network.remove(lab_id)
    if _is_ours(_sockets(lab_id)):
        shutil.rmtree(_sockets(lab_id))
        found = True
    if os.path.islink(_entry(lab_id)) and _is_ours(_entry(lab_id)):
        os.remove(_entry(lab_id))
        found = True
    return found


def end(lab: Lab) -> None:
    """Ends the lab's process, which ends its children, and cleans up. If it
    was killed before, the kernel has ended its children."""
    deadline = time.monotonic() + _END_SECONDS
    number = signal.SIGTERM
    while lab.owner_runs():
        if number is not None:
            os.kill(lab.pid, number)
            number = None
        if time.monotonic() >= deadline:
            number, deadline = signal.SIGKILL, deadline + _END_SECONDS
        time.sleep(0.05)
    clean(lab)
