"""Optimizers and param groups: defaults, checks, values per step."""

import math
from collections.abc import MutableMapping
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from . import _names, errors

# PyTorch's names and defaults; lion's are its paper's.
OPTIMIZERS: Dict[str, Dict[str, Any]] = {
    "sgd": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0,
            "weight_decay": 0.0, "nesterov": False},
    "adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8,
             "weight_decay": 0.0},
    "adamw": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8,
              "weight_decay": 1e-2},
    "lion": {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0},
    "adagrad": {"lr": 1e-2, "lr_decay": 0.0, "weight_decay": 0.0,
                "initial_accumulator_value": 0.0, "eps": 1e-10},
}
_FIXED = ("match", "params")


def _number(key: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0 or isinstance(value, str):
        raise errors.InvalidArgument(
            "%s must be a finite number >= 0, not %s"
            % (key, _names.shown(value)))
    return number


def _betas(value: Any) -> Tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise errors.InvalidArgument(
            "betas must be two numbers in [0, 1), not %s"
            % _names.shown(value))
    result = (_number("betas[0]", value[0]), _number("betas[1]", value[1]))
    if max(result) >= 1:
        raise errors.InvalidArgument(
            "betas must be in [0, 1), not %s" % _names.shown(value))
    return result


def _checked(key: str, value: Any) -> Any:
    if key == "betas":
        return _betas(value)
    if key == "nesterov":
        if not isinstance(value, bool):
            raise errors.InvalidArgument(
                "nesterov must be True or False, not %s"
                % _names.shown(value))
        return value
    return _number(key, value)


class ParamGroup(MutableMapping):
    """Hyperparameters of one group of tensors; changes travel with the next
    step, and all ranks must make the same.

    Keys: "lr", "weight_decay" and, by optimizer, "betas", "eps",
    "momentum", "dampening", "nesterov", "lr_decay" or
    "initial_accumulator_value". Fixed: "params" (names of its
    tensors) and "match" (its patterns; empty for the default group).
    """

    def __init__(self, values: Dict[str, Any], params: Sequence[str],
                 match: Sequence[str]):
        self._values = values
        self._fixed = {"params": tuple(params), "match": tuple(match)}

    def __getitem__(self, key: str) -> Any:
        if key in self._fixed:
            return self._fixed[key]
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _FIXED:
            raise errors.InvalidArgument(
                "\"%s\" of a param group cannot change after the session was "
                "opened" % key)
        if key not in self._values:
            raise errors.InvalidArgument(
                "unknown key %s in a param group; the nearest known one is "
                "\"%s\"" % (_names.shown(key),
                            _names.nearest(key, self._values)))
        self._values[key] = _checked(key, value)

    def __delitem__(self, key: str) -> None:
        raise errors.InvalidArgument("keys of a param group stay: %s"
                                     % _names.shown(key))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values) + list(_FIXED))

    def __len__(self) -> int:
        return len(self._values) + len(_FIXED)

    def __repr__(self) -> str:
        return "ParamGroup(%r)" % dict(self)

    def flat(self) -> Dict[str, Any]:
        """As the C interface names them: beta1, beta2 instead of betas."""
        flat = dict(self._values)
        if "betas" in flat:
            flat["beta1"], flat["beta2"] = flat.pop("betas")
        nesterov = flat.get("nesterov", False)
        if nesterov and (flat["momentum"] == 0 or flat["dampening"] != 0):
            raise errors.InvalidArgument(
                "nesterov needs a momentum > 0 and dampening = 0, not "
                "momentum %g and dampening %g"
                % (flat["momentum"], flat["dampening"]))
        return flat

    def take(self, flat: Mapping[str, float]) -> None:
        """The reverse of flat(), from values that the daemon has."""
        for key in self._values:
            if key == "betas":
                self._values[key] = (flat["beta1"], flat["beta2"])
            elif key == "nesterov":
                self._values[key] = flat[key] != 0
            else:
                self._values[key] = flat[key]


def _merge(base: Dict[str, Any], changes: Mapping[str, Any],
           what: str) -> Dict[str, Any]:
    values = dict(base)
    for key, value in changes.items():
        if key not in values:
            raise errors.InvalidArgument(
                "unknown key %s in %s; the nearest known one is \"%s\""
                % (_names.shown(key), what, _names.nearest(key, values)))
        values[key] = _checked(key, value)
    return values


def parse_optimizer(optimizer: Any) -> Tuple[str, Dict[str, Any]]:
    """The `optimizer` argument: (name, all its values)."""
    if not isinstance(optimizer, Mapping) or "name" not in optimizer:
        raise errors.InvalidArgument(
            "optimizer must be a dictionary with a \"name\", as in "
            "{\"name\": \"adamw\", \"lr\": 3e-4}, not %s"
            % _names.shown(optimizer))
    name = optimizer["name"]
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise errors.InvalidArgument(
            "optimizer %s is not one of %s"
            % (_names.shown(name), ", ".join(OPTIMIZERS)))
    changes = {k: v for k, v in optimizer.items() if k != "name"}
    return name, _merge(OPTIMIZERS[name], changes,
                        "optimizer \"%s\"" % name)


def parse_groups(defaults: Dict[str, Any], param_groups: Any,
                 names: Sequence[str]) -> List[ParamGroup]:
    """Group 0 holds what no entry of `param_groups` matches, group i what
    entry i - 1 is the first to match."""
    entries = [] if param_groups is None else param_groups
    if not isinstance(entries, (list, tuple)):
        raise errors.InvalidArgument(
            "param_groups must be a list of dictionaries, not %s"
            % _names.shown(param_groups))
    left = list(names)
    groups = []
    for index, entry in enumerate(entries):
        what = "param_groups[%d]" % index
        if not isinstance(entry, Mapping) or "match" not in entry:
            raise errors.InvalidArgument(
                "%s must be a dictionary with a \"match\" pattern, not %s"
                % (what, _names.shown(entry)))
        match = _names.patterns(entry["match"], what + " match")
        found = set(_names.matching(match, names, what + " match"))
        taken = [n for n in left if n in found]
        if not taken:
            raise errors.InvalidArgument(
                "%s matches only tensors of earlier groups: put the narrower "
                "pattern first" % what)
        left = [n for n in left if n not in found]
        changes = {k: v for k, v in entry.items() if k != "match"}
        groups.append(ParamGroup(_merge(defaults, changes, what), taken,
                                 match))
    groups.insert(0, ParamGroup(dict(defaults), left, ()))
    for group in groups:
        group.flat()  # checks values against one another
    return groups
