"""From checked arguments to the C interface's array of tensors."""

import ctypes
from typing import Any, List, Sequence, Tuple

from . import _library, _tensors, groups


def tensor_structs(specs: Sequence[_tensors.TensorSpec],
                   param_groups: Sequence[groups.ParamGroup],
                   frozen: Any, with_values: bool) -> Tuple[Any, List[Any]]:
    """The C array and what must live as long as it is used."""
    group_of = {name: index for index, group in enumerate(param_groups)
                for name in group["params"]}
    structs = (_library.TensorStruct * len(specs))()
    keep: List[Any] = []
    for struct, spec in zip(structs, specs):
        shape = (ctypes.c_int64 * len(spec.shape))(*spec.shape)
        keep.append(shape)
        struct.name = spec.name.encode()
        struct.shape = shape
        struct.ndim = len(spec.shape)
        struct.dtype = spec.code
        struct.frozen = int(spec.name in frozen)
        struct.group = group_of[spec.name]
        if spec.value is not None and with_values:
            keep.append(spec.value)
            struct.initial = spec.value.ctypes.data
            struct.initial_bytes = spec.value.nbytes
    return structs, keep
