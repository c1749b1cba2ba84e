"""From torch.optim's classes and groups to the daemon's optimizers."""

import difflib
from typing import Any, Dict, List, Mapping, Tuple

from .. import _names, errors, groups

# What changes PyTorch's result and the daemon has not: only "off" is taken.
_MUST_BE_OFF = ("amsgrad", "maximize", "capturable", "differentiable",
                "decoupled_weight_decay")
# How PyTorch runs its own kernels: means nothing here and changes no result.
_KERNELS = ("foreach", "fused")
# What schedulers keep in a group.
_OTHERS = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum",
           "swa_lr", "name")


def optimizer_name(optimizer: Any) -> str:
    """"adamw" of torch.optim.AdamW or of "AdamW"."""
    if isinstance(optimizer, str):
        name = optimizer.lower()
    elif isinstance(optimizer, type):
        name = optimizer.__name__.lower()
        if not optimizer.__module__.startswith("torch.optim"):
            raise errors.InvalidArgument(
                "optimizer class %s.%s is not one of torch.optim: the update "
                "runs in the daemon, which has %s"
                % (optimizer.__module__, optimizer.__qualname__, _known()))
    else:
        raise errors.InvalidArgument(
            "the optimizer must be a class of torch.optim or a name, as in "
            "torch.optim.AdamW or \"adamw\", not %s%s"
            % (_names.shown(optimizer),
               " (an object: give its class and the same arguments)"
               if hasattr(optimizer, "param_groups") else ""))
    if name not in groups.OPTIMIZERS:
        raise errors.InvalidArgument(
            "optimizer %s is not one of those that the daemon has: %s"
            % (_names.shown(name), _known()))
    return name


def _known() -> str:
    return ", ".join(groups.OPTIMIZERS)


def _take_flags(values: Mapping[str, Any], what: str) -> Dict[str, Any]:
    """Without those that must be off (checked) or mean nothing here."""
    left = {}
    for key, value in values.items():
        if key in _MUST_BE_OFF:
            if value:
                remedy = ("use AdamW" if key == "decoupled_weight_decay"
                          else "leave it out")
                raise errors.InvalidArgument(
                    "%s: %s=%s is not what the daemon's optimizers do: %s"
                    % (what, key, _names.shown(value), remedy))
        elif key not in _KERNELS:
            left[key] = value
    return left


def defaults(name: str, given: Mapping[str, Any]) -> Dict[str, Any]:
    """All hyperparameters of the optimizer, in torch.optim's form."""
    taken = _take_flags(given, "optimizer \"%s\"" % name)
    return groups.parse_optimizer({**taken, "name": name})[1]


def group_values(name: str, group: Mapping[str, Any], index: int
                 ) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """A group's hyperparameters, and the keys that only the user or a
    scheduler knows. A misspelt key is refused."""
    known = groups.OPTIMIZERS[name]
    what = "param group %d" % index
    values, others = {}, {}
    for key, value in _take_flags(group, what).items():
        if key in ("params", "param_names"):
            continue
        if key in known:
            values[key] = value
            continue
        close = difflib.get_close_matches(str(key), list(known), 1, 0.75)
        if close and key not in _OTHERS:
            raise errors.InvalidArgument(
                "unknown key %s in %s; the nearest known one is \"%s\""
                % (_names.shown(key), what, close[0]))
        others[key] = value
    return values, others


def send(param_groups: List[Dict[str, Any]], name: str, session: Any) -> None:
    """Puts the values that the groups have now into the session's; what is
    wrong is refused with the group's number."""
    for index, group in enumerate(param_groups):
        _send_group(index, group, name, session.param_groups[index + 1])
    # The session's own first group has frozen tensors only; StepResult.lr is
    # its.
    _send_group(0, param_groups[0], name, session.param_groups[0])


def _send_group(index: int, group: Dict[str, Any], name: str,
                target: Any) -> None:
    for key in groups.OPTIMIZERS[name]:
        if key not in group:
            raise errors.InvalidArgument(
                "param group %d has lost its \"%s\"" % (index, key))
        try:
            target[key] = plain(group[key])
        except errors.InvalidArgument as error:
            raise errors.InvalidArgument(
                "param group %d: %s" % (index, error)) from None


def plain(value: Any) -> Any:
    """A number for a tensor of one element (torch 2.x allows lr as one)."""
    return value.item() if hasattr(value, "item") else value


def held(session: Any, count: int, name: str) -> List[Dict[str, Any]]:
    """The values that a resumed job goes on with, per group."""
    return [{key: session.param_groups[index + 1][key]
             for key in groups.OPTIMIZERS[name]} for index in range(count)]
