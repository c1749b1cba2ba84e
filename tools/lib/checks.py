"""Checks of the source tree that need no build. Each returns its complaints;
an empty list is a pass. Warnings are printed and count as nothing."""

import os
import re
import shutil
import subprocess
import sys
from typing import Callable, Dict, List, NamedTuple, Optional

import sources

_FORMATTER = "clang-format-14"
_ANALYZER = "clang++-14"
_LONG, _TOO_LONG, _TOO_LONG_TEST = 400, 1000, 1200
_README_LINES = 60
_UNMEASURED = ("tests/golden/", "LICENSE", "third_party/")


class Skipped(Exception):
    """Raised by a check that cannot run here; says why."""


class Rule(NamedTuple):
    name: str
    pattern: "re.Pattern[str]"
    only: List[str]
    exempt: List[str]
    unless: "Optional[re.Pattern[str]]"
    comments: bool
    why: str


def read_rules(path: str) -> List[Rule]:
    """The rules of a file like banned.txt."""
    with open(path, encoding="utf-8") as stream:
        text = re.sub(r"(?m)^#.*\n?", "", stream.read())
    rules = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        keys: Dict[str, str] = {}
        for line in paragraph.splitlines():
            key, _, value = line.partition(":")
            keys[key.strip()] = value.strip()
        unknown = set(keys) - {"rule", "pattern", "in", "except", "unless",
                               "comments", "why"}
        if unknown or not {"rule", "pattern", "why"} <= set(keys):
            raise ValueError("%s: bad rule: %s" % (path, paragraph))
        rules.append(Rule(
            keys["rule"], re.compile(keys["pattern"]),
            keys.get("in", "").split(), keys.get("except", "").split(),
            re.compile(keys["unless"]) if "unless" in keys else None,
            keys.get("comments") == "yes", keys["why"]))
    return rules


def banned_in(path: str, text: str, rules: List[Rule]) -> List[str]:
    """Complaints about one C++ file."""
    raw = text.splitlines()
    code = sources.without_comments(text).splitlines()
    found = []
    for rule in rules:
        if rule.only and not sources.matches(path, rule.only):
            continue
        if sources.matches(path, rule.exempt):
            continue
        for number, line in enumerate(raw if rule.comments else code):
            # A wrapped `unique_ptr<X>(` ends the line before its `new`.
            around = " ".join(code[max(0, number - 1):number + 1])
            if rule.pattern.search(line) and not (
                    rule.unless and rule.unless.search(around)):
                found.append("%s:%d: %s: %s\n    %s" % (
                    path, number + 1, rule.name, rule.why,
                    raw[number].strip()))
    return found


def banned_words(root: str) -> List[str]:
    rules = read_rules(os.path.join(root, "tools/lib/banned.txt"))
    return [complaint for path in sources.files(root, sources.CPP)
            for complaint in banned_in(path, _read(root, path), rules)]


def formatting(root: str) -> List[str]:
    if shutil.which(_FORMATTER) is None:
        raise Skipped("no %s on this machine" % _FORMATTER)
    paths = list(sources.files(root, sources.CPP))
    if not paths:
        return []
    done = subprocess.run(
        [_FORMATTER, "--dry-run", "--style=file", *paths], cwd=root,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False)
    bad = sorted(set(re.findall(
        r"^(\S+?):\d+:\d+: (?:warning|error)", done.stdout, re.MULTILINE)))
    if done.returncode != 0 and not bad:
        return [done.stdout.strip()]
    return ["%s: run %s -i" % (path, _FORMATTER) for path in bad]


def file_length(root: str) -> List[str]:
    found = []
    endings = sources.CPP + (".py", ".sh", ".bzl", ".proto", "BUILD")
    for path in sources.files(root, endings):
        if sources.matches(path, _UNMEASURED):
            continue
        count = _read(root, path).count("\n")
        is_test = re.search(r"_test\.\w+$", path) is not None
        if count > (_TOO_LONG_TEST if is_test else _TOO_LONG):
            found.append("%s: %d lines; split it" % (path, count))
        elif count > _LONG and not is_test:
            print("warning: %s: %d lines, %d are normal" %
                  (path, count, _LONG))
    return found


def readmes(root: str) -> List[str]:
    return ["%s: more than %d lines" % (path, _README_LINES)
            for path in sources.files(root, ("README.md",))
            if os.path.dirname(path)
            and _read(root, path).count("\n") > _README_LINES]


def scripts(root: str) -> List[str]:
    """Every script is at least well-formed."""
    found = []
    for path in sources.files(root):
        full = os.path.join(root, path)
        with open(full, "rb") as stream:
            head = stream.readline(200)
        is_python = path.endswith(".py") or (
            head.startswith(b"#!") and b"python" in head)
        if is_python:
            try:
                compile(_read(root, path), path, "exec")
            except SyntaxError as error:
                found.append("%s:%s: %s" % (path, error.lineno, error.msg))
        elif head.startswith(b"#!") and head.rstrip().endswith(b"sh"):
            shell = head[2:].split()[0].decode()
            done = subprocess.run([shell, "-n", full], text=True, check=False,
                                  stderr=subprocess.PIPE)
            if done.returncode != 0:
                found.append(done.stderr.strip())
    return found


def failpoints(root: str) -> List[str]:
    """Failpoints are compiled in where //server/daemon:failpoints says, and
    only what lies in a .cc file can be: of an inline function the linker might
    take the usual one."""
    used = re.compile(r"\bBALLAST_(FAILPOINT|FAILPOINT_STATUS|SABOTAGED)\(")
    build = "server/daemon/BUILD"
    if not os.path.exists(os.path.join(root, build)):
        return []
    table = re.search(r"_FAILPOINT_SOURCES = \[(.*?)\]", _read(root, build),
                      re.DOTALL)
    listed = set(re.findall(r'"([^"]+\.cc)"', table.group(1) if table else ""))
    found = []
    for path in sources.files(root, sources.CPP):
        if sources.matches(path, ["server/base/failpoint", "tests/"]) or \
                not used.search(sources.without_comments(_read(root, path))):
            continue
        folder, name = os.path.split(path)
        label = name if folder == os.path.dirname(build) else \
            "//%s:%s" % (folder, name)
        if not path.endswith(".cc"):
            found.append("%s: failpoints belong into .cc files" % path)
        elif label not in listed:
            found.append("%s: has failpoints; name it in _FAILPOINT_SOURCES "
                         "of %s" % (path, build))
    return found


def locks(root: str, outputs: str) -> List[str]:
    """Clang's thread-safety analysis of everything that has a base::Mutex:
    GCC does not know the annotations. `outputs` holds the generated headers,
    so this one wants a build."""
    if shutil.which(_ANALYZER) is None:
        raise Skipped("no %s on this machine" % _ANALYZER)
    found = []
    for path in sources.files(root, (".cc",)):
        texts = [_read(root, p) for p in (path, path[:-2] + "h")
                 if os.path.exists(os.path.join(root, p))]
        if not any('"server/base/mutex.h"' in text for text in texts):
            continue
        done = subprocess.run(
            [_ANALYZER, "-std=c++20", "-fsyntax-only", "-Wthread-safety",
             "-Werror=thread-safety", "-iquote", ".", "-iquote", outputs,
             path], cwd=root, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False)
        if done.returncode != 0:
            found.append(done.stdout.strip())
    return found


def _read(root: str, path: str) -> str:
    with open(os.path.join(root, path), encoding="utf-8",
              errors="replace") as stream:
        return stream.read()


ALL: Dict[str, Callable[[str], List[str]]] = {
    "format": formatting,
    "banned words": banned_words,
    "file length": file_length,
    "readmes": readmes,
    "scripts": scripts,
    "failpoints": failpoints,
}

if __name__ == "__main__":
    bad = 0
    for check_name, check in ALL.items():
        for complaint in check(os.getcwd()):
            print("%s: %s" % (check_name, complaint))
            bad = 1
    sys.exit(bad)
