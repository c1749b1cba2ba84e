"""The files that checks look at, and C++ text without comments."""

import fnmatch
import os
import re
from typing import Iterator, Sequence

CPP = (".h", ".cc", ".cu", ".cuh")
_SKIP = {".git", ".out", "__pycache__"}


def files(root: str, endings: Sequence[str] = ()) -> Iterator[str]:
    """Paths relative to ``root``, sorted; build outputs are left out.
    No endings: all files."""
    for directory, names, leaves in os.walk(root):
        names[:] = sorted(n for n in names
                          if n not in _SKIP and not n.startswith("bazel-"))
        for leaf in sorted(leaves):
            path = os.path.join(directory, leaf)
            if os.path.islink(path):
                continue
            if endings and not leaf.endswith(tuple(endings)):
                continue
            yield os.path.relpath(path, root)


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether the path starts with, or has the shape of, one pattern."""
    return any(fnmatch.fnmatch(path, p) if "*" in p else path.startswith(p)
               for p in patterns)


_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^\s()\\]*)\(.*?\)\1"'
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL)


def without_comments(text: str) -> str:
    """C++ with comments and literals blanked and every line kept. A digit
    separator (1'000) is no literal."""
    def blank(match: "re.Match[str]") -> str:
        token = match.group(0)
        before = text[match.start() - 1:match.start()]
        if token[0] == "'" and before.isalnum() and before not in "LuU":
            return token
        inside = re.sub(r"[^\n]", " ", token)
        return '""' + inside[2:] if token[0] in "\"R" else inside

    return _TOKEN.sub(blank, text)
