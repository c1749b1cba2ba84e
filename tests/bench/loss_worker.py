"""One rank of tools/bench loss: train_gpt.py, and with --hop1 as if gradients
crossed inside the node as ZeRO++ sends them there.

ZeRO++ encodes every rank's gradient as int4 before the ranks of a node add
them (its first hop); Ballast adds them in shared memory as they are. --hop1
encodes and decodes each gradient before it is handed over, so that the price
of that hop can be seen. Block, range and rounding are those of Ballast's own
hop between nodes (kernels/FORMAT.md, section 3: int4, 128, sym, nearest), so
that nothing else differs; small tensors stay as they are, as in the presets.
"""

import os
import sys
from typing import List

import torch

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(_HERE)),
                                "client", "python", "examples"))

import gpt  # noqa: E402
import train_gpt  # noqa: E402
from report import finish  # noqa: E402

_BLOCK = 128
_LARGEST_CODE = 7.0
_TINY = 2.0**-120
_OPT_OUT_ELEMENTS = 16 << 10  # a preset's


def through_int4(gradient: torch.Tensor) -> torch.Tensor:
    """What is left of an fp32 tensor that was encoded and decoded."""
    blocks = torch.nn.functional.pad(
        gradient.reshape(-1), (0, -gradient.numel() % _BLOCK)).view(-1, _BLOCK)
    absmax = blocks.abs().amax(1, keepdim=True)
    is_tiny = absmax < _TINY
    divisor = absmax.masked_fill(is_tiny, 1.0)
    codes = (blocks * (_LARGEST_CODE / divisor)).round_()
    codes.clamp_(-_LARGEST_CODE, _LARGEST_CODE).masked_fill_(is_tiny, 0.0)
    values = codes * (divisor / _LARGEST_CODE)
    # One element that is not finite is the whole block's.
    values[~blocks.isfinite().all(1)] = float("nan")
    return values.view(-1)[:gradient.numel()].view(gradient.shape)


def add_hop(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.numel() > _OPT_OUT_ELEMENTS:
            parameter.register_hook(through_int4)


def main(argv: List[str]) -> None:
    has_hop = "--hop1" in argv
    options = train_gpt.parse([one for one in argv if one != "--hop1"])
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    text, num_kinds = gpt.load_text()
    model = gpt.Gpt(num_kinds)
    if has_hop:
        add_hop(model)
    run = train_gpt.train(options, model, text)
    if run.rank == 0:
        run.report.evaluation = gpt.evaluate(model, text)
    finish(run, len(text), options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
