"""What goes together with weights that are not resident."""

from typing import Any, Mapping, Optional

import torch

from .. import errors


def is_asked_for(exchange: Any) -> bool:
    """Whether a policy leaves no weights resident."""
    if isinstance(exchange, Mapping):
        return exchange.get("secondary_partition") == "none"
    return "secondary_partition=none" in str(exchange).split()


def check(model: Optional[torch.nn.Module], overlap: Any) -> None:
    """Refuses what does not go together with it."""
    if model is None:
        raise errors.InvalidArgument(
            "exchange with secondary_partition: none needs model=: weights "
            "are gathered where its modules use them")
    if overlap:
        raise errors.InvalidArgument(
            "overlap=True with secondary_partition: none is not possible: "
            "weights are waited for where they are gathered; leave overlap "
            "out")
    if isinstance(model, torch.jit.ScriptModule) or \
            hasattr(model, "_orig_mod"):
        raise errors.InvalidArgument(
            "exchange with secondary_partition: none needs an ordinary "
            "module, not a compiled or scripted one, which does not say when "
            "it uses a weight")


def check_cache(cache_bytes: Any) -> int:
    if type(cache_bytes) is not int or cache_bytes < 0:
        raise errors.InvalidArgument(
            "gather_cache must be a number of bytes >= 0, not %r"
            % (cache_bytes,))
    return cache_bytes
