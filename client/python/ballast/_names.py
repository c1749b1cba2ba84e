"""Checks that every argument shares: names, patterns, nearest words."""

import difflib
import fnmatch
import re
from typing import Any, Iterable, List, Sequence

from . import errors

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_WILD = re.compile(r"[*?[]")
_TENSOR = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,254}\Z")


def shown(value: Any) -> str:
    """A value as it appears in an error: quoted and cut."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def nearest(word: Any, known: Iterable[str]) -> str:
    """The known word that looks most like `word`."""
    candidates = sorted(known)
    matches = difflib.get_close_matches(str(word), candidates, 1, 0.0)
    return matches[0] if matches else candidates[0]


def check_job_name(name: Any, what: str) -> str:
    if (not isinstance(name, str) or not _JOB.match(name) or ".." in name):
        raise errors.InvalidArgument(
            "%s %s is not a name: 1 to 63 characters A-Z a-z 0-9 . _ -, the "
            "first a letter or digit, no \"..\"" % (what, shown(name)))
    return name


def check_tensor_name(name: Any) -> str:
    bad = (not isinstance(name, str) or not _TENSOR.match(name)
           or ".." in name or "//" in name or "/." in name
           or name.endswith("/"))
    if bad:
        raise errors.InvalidArgument(
            "tensor name %s is not allowed: 1 to 255 characters "
            "A-Z a-z 0-9 _ . : / -, the first a letter, digit or _, without "
            "\"..\", \"//\", \"/.\" and without \"/\" at the end"
            % shown(name))
    return name


def patterns(value: Any, what: str) -> List[str]:
    """One pattern or a list of them, as a list."""
    result = [value] if isinstance(value, str) else value
    if (not isinstance(result, (list, tuple)) or not result
            or not all(isinstance(p, str) for p in result)):
        raise errors.InvalidArgument(
            "%s must be a pattern or a list of patterns (as in \"*.bias\"), "
            "not %s" % (what, shown(value)))
    return list(result)


def matching(pattern_list: Sequence[str], names: Sequence[str],
             what: str) -> List[str]:
    """The names that match any pattern (fnmatch: * ? [abc], case counts). A
    pattern that matches nothing is an error: it is a typo."""
    result = set()
    known = set(names)
    for pattern in pattern_list:
        if pattern in known and not _WILD.search(pattern):
            result.add(pattern)
            continue
        found = [n for n in names if fnmatch.fnmatchcase(n, pattern)]
        if not found:
            raise errors.InvalidArgument(
                "%s %s matches no tensor; the nearest name is %s"
                % (what, shown(pattern), nearest(pattern, names)))
        result.update(found)
    return [n for n in names if n in result]
