"""Compares the build's dependencies with layers.txt.

    bazel query --output=xml "$QUERY" | layering.py [TABLE]

prints one line per violation and exits with 1 if there is any. Only what is
compiled or linked counts (srcs, hdrs, deps); programs that a test starts are
`data`. Tests and testonly libraries may reach across layers.
"""

import os
import sys
import xml.etree.ElementTree as ElementTree
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

QUERY = "kind('rule', //...)"
_HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(_HERE, "layers.txt")
_EDGES = ("deps", "implementation_deps", "srcs", "hdrs")
_GENERATORS = ("cc_grpc_proto",)


class Rule(NamedTuple):
    """One target of the build."""
    label: str
    kind: str
    edges: List[str]
    srcs: List[str]
    hdrs: List[str]
    visibility: List[str]
    is_test: bool
    generator: str

    @property
    def package(self) -> str:
        return self.label[2:].partition(":")[0]

    @property
    def name(self) -> str:
        return self.label.rpartition(":")[2]


class Table:
    """layers.txt, read strictly."""

    def __init__(self, text: str):
        self.layer: Dict[str, int] = {}
        self.root: Set[str] = set()
        self.aside: Dict[str, Set[str]] = {}
        self.apart: List[List[str]] = []
        self.library: Dict[str, List[str]] = {}
        self.public: Set[str] = set()
        self.together: Set[str] = set()
        for line in text.splitlines():
            line = line.partition("#")[0].strip()
            if line:
                self._add(line)

    def _add(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "layer":
            number, *modules = rest.split()
            self.layer.update((m, int(number)) for m in modules)
        elif word == "root":
            self.root.update(rest.split())
        elif word == "aside":
            module, _, others = rest.partition(": ")
            self.aside[module] = set(others.split())
        elif word == "apart":
            self.apart.append(rest.split())
        elif word == "library":
            target, _, modules = rest.partition(": ")
            self.library[target] = modules.split()
        elif word == "together":
            target, _, why = rest.partition(": ")
            if not why:
                raise ValueError("layers.txt: no reason in: " + line)
            self.together.add(target)
        elif word == "public":
            self.public.update(rest.split())
        else:
            raise ValueError("layers.txt: unknown word in: " + line)

    def module(self, label: str) -> Optional[str]:
        """The module that a label of this repository lies in."""
        if not label.startswith("//"):
            return None
        package = label[2:].partition(":")[0]
        while package:
            if package in self.layer or package in self.aside:
                return package
            package = package.rpartition("/")[0]
        return None


def read_rules(xml: str) -> Dict[str, Rule]:
    """The targets in the output of `bazel query --output=xml`."""
    rules = {}
    for node in ElementTree.fromstring(xml).iter("rule"):
        lists = {child.get("name"): [item.get("value", "") for item in child]
                 for child in node if child.tag == "list"}
        texts = {child.get("name"): child.get("value", "") for child in node
                 if child.tag in ("string", "boolean")}
        kind = node.get("class", "")
        label = node.get("name", "")
        rules[label] = Rule(
            label, kind,
            [edge for name in _EDGES for edge in lists.get(name, [])],
            lists.get("srcs", []), lists.get("hdrs", []),
            lists.get("visibility", []),
            kind.endswith("_test") or texts.get("testonly") == "true",
            texts.get("generator_function", ""))
    return rules


def violations(rules: Dict[str, Rule], table: Table) -> List[str]:
    """Everything in the graph that the table forbids."""
    found = []
    for label in sorted(rules):
        rule = rules[label]
        if label not in table.together:
            found += _shape(rule)
        found += _visibility(rule, table)
        if not rule.is_test and table.module(label):
            found += _direct(rule, table) + _libraries(rule, table)
            found += _reach(rule, rules, table)
    for module in sorted({r.package for r in rules.values()}):
        if (module.startswith(("server/", "client/"))
                and table.module("//" + module) is None):
            found.append("//%s: no line of layers.txt names it" % module)
    return found


def _direct(rule: Rule, table: Table) -> List[str]:
    """Each edge goes down; so then does every path."""
    mine = table.module(rule.label)
    if mine not in table.layer:
        return []
    found = []
    for edge in rule.edges:
        other = table.module(edge)
        if other == mine or not edge.startswith("//"):
            continue
        if mine in table.root and not edge.startswith("//third_party"):
            found.append("%s depends on %s; %s stands on nothing" %
                         (rule.label, edge, mine))
        elif other is None:
            if not edge.startswith("//third_party"):
                found.append("%s depends on %s, which is in no layer" %
                             (rule.label, edge))
        elif other not in table.layer:
            found.append("%s depends on %s, which is outside the layers" %
                         (rule.label, edge))
        elif table.layer[other] >= table.layer[mine]:
            found.append("%s (layer %d) depends on %s (layer %d)" % (
                rule.label, table.layer[mine], edge, table.layer[other]))
    return found


def _reach(rule: Rule, rules: Dict[str, Rule], table: Table) -> List[str]:
    """What lies at the end of a longer path."""
    mine = table.module(rule.label)
    apart = {other for group in table.apart if mine in group
             for other in group if other != mine}
    allowed = table.aside.get(mine) if mine else None
    if not apart and allowed is None:
        return []
    found = []
    for target, path in sorted(_closure(rule, rules).items()):
        other = table.module(target)
        if other is None or other == mine:
            continue
        if other in apart or (allowed is not None and other not in allowed):
            found.append("forbidden path: " + " -> ".join(path))
    return found


def _closure(rule: Rule, rules: Dict[str, Rule]) -> Dict[str, Tuple[str, ...]]:
    """Every label that `rule` reaches, each with one shortest path."""
    paths = {rule.label: (rule.label,)}
    queue = [rule.label]
    for label in queue:  # grows while it is walked
        for edge in rules[label].edges if label in rules else ():
            if edge not in paths:
                paths[edge] = paths[label] + (edge,)
                queue.append(edge)
    return paths


def _libraries(rule: Rule, table: Table) -> List[str]:
    mine = rule.package
    return ["%s names %s, which belongs to %s alone" %
            (rule.label, edge, " ".join(table.library[edge]))
            for edge in rule.edges if edge in table.library
            and not any((mine + "/").startswith(m + "/")
                        for m in table.library[edge])]


def _shape(rule: Rule) -> List[str]:
    """One header and one source, both named like the library; what is too long
    for one file goes on in NAME_PART.cc."""
    if (rule.kind != "cc_library" or rule.generator in _GENERATORS
            or not rule.package.startswith(("server", "client", "kernels",
                                            "proto", "tests"))):
        return []
    sources = {s for s in rule.srcs if not s.endswith(".h")}
    stem = "//%s:" % rule.package
    found = []
    if [h[len(stem):].rpartition("/")[2] for h in rule.hdrs] not in (
            [rule.name + ".h"], [rule.name + ".cuh"]):
        found.append("%s: one header, %s.h, not %s" %
                     (rule.label, rule.name, rule.hdrs))
    names = {stem + rule.name + end for end in (".cc", ".cu")}
    parts = {s for s in sources if s.startswith(stem + rule.name + "_")
             and s.endswith(".cc")}
    if not sources <= names | (parts if sources & names else set()):
        found.append("%s: one source, %s.cc, not %s" %
                     (rule.label, rule.name, sorted(sources)))
    return found


def _visibility(rule: Rule, table: Table) -> List[str]:
    if "//visibility:public" not in rule.visibility:
        return []
    if table.module(rule.label) in table.public or not (
            rule.package.startswith(("server", "client", "tests"))):
        return []
    return ["%s is public; name a group of //BUILD" % rule.label]


def complaints(xml: str, table_path: str = TABLE) -> List[str]:
    with open(table_path, encoding="utf-8") as stream:
        return violations(read_rules(xml), Table(stream.read()))


def control(xml: str) -> List[str]:
    """The negative control: the real graph against upside-down layers must
    be refused, at least once for each layer that has users above it."""
    with open(TABLE, encoding="utf-8") as stream:
        table = Table(stream.read())
    rules = read_rules(xml)
    before = len(violations(rules, table))
    highest = max(table.layer.values())
    table.layer = {m: highest - n for m, n in table.layer.items()}
    table.root = set()
    if len(violations(rules, table)) <= before:
        return ["upside-down layers were not noticed"]
    return []


def main() -> int:
    found = complaints(sys.stdin.read(), *sys.argv[1:2])
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
