"""What torch.optim takes as `params`, with names, checked before it is
registered."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

import torch

from .. import _names, errors

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16",
          torch.float16: "float16"}


class Entry(NamedTuple):
    """One tensor of the job."""
    name: str
    parameter: torch.nn.Parameter
    group: int  # index into param_groups; -1: of the model only
    is_trainable: bool


class Parsed(NamedTuple):
    groups: List[Dict[str, Any]]  # as torch.optim.Optimizer takes them
    entries: List[Entry]


def _group_list(params: Any) -> List[Dict[str, Any]]:
    if isinstance(params, torch.Tensor):
        raise errors.InvalidArgument(
            "params must be an iterable of parameters, as in "
            "model.parameters(), not one tensor")
    if isinstance(params, torch.nn.Module):
        raise errors.InvalidArgument(
            "params must be an iterable of parameters, as in "
            "model.parameters() or model.named_parameters(), not a module")
    members = list(params)
    if not members:
        raise errors.InvalidArgument("params is empty: no parameter to train")
    if not isinstance(members[0], dict):
        members = [{"params": members}]
    return [dict(group) for group in members]


def _named(member: Any, index: int, place: int
           ) -> Tuple[Optional[str], torch.Tensor]:
    name, parameter = member if isinstance(member, tuple) else (None, member)
    if not isinstance(parameter, torch.Tensor):
        raise errors.InvalidArgument(
            "param group %d, entry %d is %s, not a parameter or a (name, "
            "parameter) pair" % (index, place, _names.shown(parameter)))
    return name, parameter


def parse(params: Any, model: Optional[torch.nn.Module]) -> Parsed:
    """Names: from (name, parameter) pairs, else from `model`, else gG.pN. A
    parameter that comes twice (a tie) is registered once. Parameters of
    `model` that are in no group are registered as frozen."""
    own = {} if model is None else {
        id(parameter): name for name, parameter in model.named_parameters()}
    entries: List[Entry] = []
    seen: Dict[int, int] = {}
    result = []
    for index, group in enumerate(_group_list(params)):
        if "params" not in group:
            raise errors.InvalidArgument(
                "param group %d has no \"params\"" % index)
        members = group["params"]
        members = ([members] if isinstance(members, torch.Tensor)
                   else list(members))
        unique = []
        for place, member in enumerate(members):
            name, parameter = _named(member, index, place)
            first = seen.setdefault(id(parameter), index)
            if first != index:
                raise errors.InvalidArgument(
                    "param groups %d and %d share a parameter: each belongs "
                    "to one group" % (first, index))
            if any(parameter is other for other in unique[-1:]) or \
                    any(e.parameter is parameter for e in entries):
                continue
            unique.append(parameter)
            entries.append(Entry(
                _name_of(name, parameter, own, model, index, place),
                parameter, index, parameter.requires_grad))
        result.append({**group, "params": unique})
    if model is not None:
        entries += _others(model, {id(e.parameter) for e in entries})
    _check(entries)
    return Parsed(result, entries)


def _name_of(name: Optional[str], parameter: torch.Tensor,
             own: Dict[int, str], model: Optional[torch.nn.Module],
             index: int, place: int) -> str:
    if name is not None:
        return _names.check_tensor_name(name)
    found = own.get(id(parameter))
    if found is not None:
        return _names.check_tensor_name(found)
    if model is not None:
        raise errors.InvalidArgument(
            "parameter g%d.p%d of shape %s is not in model=: was it replaced "
            "after model.parameters() was taken? Give the model that is "
            "trained, or (name, parameter) pairs"
            % (index, place, tuple(parameter.shape)))
    return "g%d.p%d" % (index, place)


def _others(model: torch.nn.Module, known: Iterable[int]) -> List[Entry]:
    """Frozen parameters of the model: published once, shared by the node's
    workers. Those of other types stay where they are."""
    return [Entry(_names.check_tensor_name(name), parameter, -1, False)
            for name, parameter in model.named_parameters()
            if id(parameter) not in known and parameter.dtype in DTYPES]


def _check(entries: List[Entry]) -> None:
    names: Dict[str, int] = {}
    for index, entry in enumerate(entries):
        if names.setdefault(entry.name, index) != index:
            raise errors.InvalidArgument(
                "two parameters have the name %s" % _names.shown(entry.name))
        _check_tensor(entry)
    if not any(entry.is_trainable for entry in entries):
        raise errors.InvalidArgument(
            "no parameter has requires_grad: nothing to train")
    _check_overlap(entries)


def _check_tensor(entry: Entry) -> None:
    tensor, shown = entry.parameter, _names.shown(entry.name)
    if tensor.device.type != "cpu":
        raise errors.FailedPrecondition(
            "parameter %s is on %s: GPU memory comes with a later version; "
            "in this one parameters live in shared host memory"
            % (shown, tensor.device))
    if tensor.layout != torch.strided:
        raise errors.InvalidArgument(
            "parameter %s has layout %s: only dense ones can be shared"
            % (shown, tensor.layout))
    if not tensor.is_leaf:
        raise errors.InvalidArgument(
            "parameter %s is the result of an operation, not a leaf: give the "
            "tensor it was made from" % shown)
    if tensor.dtype not in DTYPES:
        raise errors.InvalidArgument(
            "parameter %s has dtype %s, not float32, bfloat16 or float16: "
            "convert the model first, as in model.to(torch.float32)"
            % (shown, tensor.dtype))
    if not tensor.is_contiguous():
        is_channels_last = tensor.dim() == 4 and tensor.is_contiguous(
            memory_format=torch.channels_last)
        raise errors.InvalidArgument(
            "parameter %s is %s: weights are published dense in row order; "
            "call model.to(memory_format=torch.contiguous_format) first (the "
            "inputs may stay channels_last)"
            % (shown, "in channels_last order" if is_channels_last
               else "not contiguous"))


def _check_overlap(entries: List[Entry]) -> None:
    """Ties must be one Parameter (I16): two that share memory would both be
    updated, and no longer be tied."""
    places = sorted((e.parameter.data_ptr(), e.parameter.data_ptr()
                     + e.parameter.numel() * e.parameter.element_size(),
                     e.name) for e in entries if e.parameter.numel() > 0)
    for (_, end, name), (start, _, other) in zip(places, places[1:]):
        if start < end:
            raise errors.InvalidArgument(
                "parameters %s and %s are two objects over the same memory: "
                "tie them by using one Parameter in both places, as in "
                "head.weight = embedding.weight"
                % (_names.shown(name), _names.shown(other)))
