#!/usr/bin/python3 -B
"""Answers on the handle socket of a configuration, and does nothing else: a
daemon as far as the lab can tell. With --socket a keeper: its socket is made
anew, as those of daemons are."""

import contextlib
import os
import re
import signal
import socket
import sys


def main(option: str, value: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    path = value
    if option == "--config":
        with open(value, encoding="utf-8") as stream:
            path = re.search(r"workers: unix://(\S+)", stream.read()).group(1)
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(path)
        door.listen()
        while True:
            door.accept()[0].close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
