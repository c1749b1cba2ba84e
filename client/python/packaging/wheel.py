"""Builds the wheel: the package, libballast.so, and the shared libraries that
it needs, under private names.

    wheel.py --library libballast.so --output DIR/….whl client/python/ballast/…

Each library of the distribution that libballast.so needs (but for those of
the C and C++ run-time) is copied to ballast.libs/ with a digest in its name
and soname, and found from there alone, as auditwheel does it: whatever
protobuf or gRPC another package brings is another library. Needs patchelf.
"""

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import Dict, List, Tuple

_RUN_TIME = re.compile(
    r"(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|"
    r"libstdc\+\+|libgcc_s)\.so")
_DATE = (2020, 1, 1, 0, 0, 0)
_METADATA = """\
Metadata-Version: 2.1
Name: ballast
Version: {version}
Summary: Optimizer state that outlives the training process
Requires-Python: >=3.8
Requires-Dist: numpy
Provides-Extra: torch
Requires-Dist: torch (>=1.13) ; extra == 'torch'
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: ballast
Root-Is-Purelib: false
Tag: {tag}
"""


def run(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE,
                          universal_newlines=True).stdout


def needed(path: str) -> List[str]:
    return run("patchelf", "--print-needed", path).split()


def closure(library: str) -> Dict[str, str]:
    """Name -> path of every library to bundle."""
    found = {}
    for line in run("ldd", library).splitlines():
        match = re.match(r"\s*(\S+) => (/\S+)", line)
        if "not found" in line:
            sys.exit("wheel.py: %s" % line.strip())
        if match and not _RUN_TIME.match(match.group(1)):
            found[match.group(1)] = os.path.realpath(match.group(2))
    return found


def private_name(name: str, path: str) -> str:
    with open(path, "rb") as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()[:8]
    stem, _, rest = name.partition(".so")
    return "%s-ballast-%s.so%s" % (stem, digest, rest)


def writable_copy(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    os.chmod(target, 0o755)


def bundle(library: str, root: str) -> None:
    """ballast/libballast.so and ballast.libs/ under `root`."""
    sources = closure(library)
    names = {name: private_name(name, path)
             for name, path in sources.items()}
    folder = os.path.join(root, "ballast.libs")
    os.makedirs(folder)
    for name, path in sources.items():
        target = os.path.join(folder, names[name])
        writable_copy(path, target)
        rename(target, names, "$ORIGIN")
        run("patchelf", "--set-soname", names[name], target)
    target = os.path.join(root, "ballast", "libballast.so")
    writable_copy(library, target)
    rename(target, names, "$ORIGIN/../ballast.libs")


def rename(path: str, names: Dict[str, str], search: str) -> None:
    for name in needed(path):
        if name in names:
            run("patchelf", "--replace-needed", name, names[name], path)
    run("patchelf", "--force-rpath", "--set-rpath", search, path)


def version_of(sources: List[str]) -> str:
    for path in sources:
        if path.endswith("ballast/__init__.py"):
            with open(path, encoding="utf-8") as stream:
                return re.search(r'__version__ = "(.+)"',
                                 stream.read()).group(1)
    sys.exit("wheel.py: ballast/__init__.py is not among the sources")


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "%s,sha256=%s,%d" % (name, digest.rstrip(b"=").decode(), len(data))


def write(output: str, files: List[Tuple[str, bytes]], info: str) -> None:
    lines = [record_line(name, data) for name, data in files]
    record = info + "/RECORD"
    text = "\n".join(lines + [record + ",,"]) + "\n"
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files + [(record, text.encode())]:
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (
                0o100755 if ".so" in name else 0o100644) << 16
            archive.writestr(entry, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--tag", required=True)
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    version = version_of(options.sources)
    info = "ballast-%s.dist-info" % version
    with tempfile.TemporaryDirectory() as root:
        for path in options.sources:
            inside = path[path.index("ballast/", path.index("python/")):]
            target = os.path.join(root, inside)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(path, target)
        bundle(options.library, root)
        files = []
        for folder, _, names in sorted(os.walk(root)):
            for name in sorted(names):
                path = os.path.join(folder, name)
                with open(path, "rb") as stream:
                    files.append((os.path.relpath(path, root),
                                  stream.read()))
    files.append((info + "/METADATA",
                  _METADATA.format(version=version).encode()))
    files.append((info + "/WHEEL", _WHEEL.format(tag=options.tag).encode()))
    write(options.output, files, info)


if __name__ == "__main__":
    main()
