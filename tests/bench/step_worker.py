"""One rank of tools/bench step. Measures, in the order of the arguments and
on the same links, whole turns of a GPT-2 training loop:

    compute              forward and backward alone, all ranks at once
                         (gradients add up: zeroing them is a loop's, not
                         theirs)
    ddp_fp32, ddp_fp16   DistributedDataParallel over Gloo and PyTorch's
                         AdamW; fp16: with PyTorch's compressing hook
    step/PRESET          ballast.torch.Optimizer, with overlap

All start from the same weights and see the same data, so the losses of a row
are also written. Rank 0 writes the rows. Memory that a turn frees is kept for
the next one, in all rows: by default glibc gives large tensors back to the
kernel, and half of such a turn's processor time is page faults.
"""

import argparse
import ctypes
import gc
import json
import sys
from typing import Any, Callable, Dict, List, Sequence

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import ballast.torch
import gpt2_model
import worker

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_HYPER = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}


class Loop:
    """One way of training; turn() is a step."""

    def __init__(self, options: argparse.Namespace):
        torch.manual_seed(1)
        self.model = gpt2_model.Gpt2(gpt2_model.size(options.model))
        self.losses: List[float] = []
        self._tokens = options.tokens

    def batch(self) -> Sequence[torch.Tensor]:
        generator = torch.Generator().manual_seed(
            1000 * len(self.losses) + distributed.get_rank())
        tokens = torch.randint(gpt2_model.VOCABULARY, (1, self._tokens + 1),
                               generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    def run(self, name: str, model: Callable[..., Any],
            step: Callable[[], Any], repeats: int) -> Dict[str, Any]:
        def turn() -> None:
            loss = model(*self.batch())
            loss.backward()
            step()
            self.losses.append(loss.item())

        return {**worker.measure(name, turn, repeats), "losses": self.losses}


def compute(options: argparse.Namespace) -> Dict[str, Any]:
    loop = Loop(options)

    return loop.run("compute", loop.model, distributed.barrier,
                    options.steps)


def ddp(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    loop = Loop(options)
    model = nn.parallel.DistributedDataParallel(loop.model,
                                                broadcast_buffers=False)
    if name == "ddp_fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.AdamW(loop.model.parameters(), **_HYPER)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return loop.run(name, model, step, options.steps)


def ours(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    loop = Loop(options)
    optimizer = ballast.torch.Optimizer(
        loop.model.parameters(), torch.optim.AdamW, model=loop.model,
        job=name.replace("/", "-"), exchange=name.partition("/")[2],
        overlap=True, **_HYPER)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    row = loop.run(name, loop.model, step, options.steps)
    last = optimizer.last_result
    for count in ("wire_bytes_sent", "payload_bytes"):
        row[count.replace("_sent", "")] = int(worker.reduced(
            getattr(last, count), distributed.ReduceOp.MAX))
    row["stage_seconds"] = last.stage_seconds
    optimizer.close()
    return row


def keep_memory() -> None:
    """mallopt(3): no mapping of its own for a large block, and no trimming."""
    libc = ctypes.CDLL(None)
    for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1)):
        if libc.mallopt(parameter, value) != 1:
            raise OSError("mallopt(%d, %d) is refused" % (parameter, value))


def row_of(name: str, options: argparse.Namespace) -> Dict[str, Any]:
    row = compute(options) if name == "compute" else \
        ddp(name, options) if name in ("ddp_fp32", "ddp_fp16") else \
        ours(name, options)
    gc.collect()  # models are large, and DDP's refer to themselves
    distributed.barrier()
    return row


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("rows", nargs="+")
    options = parser.parse_args(argv)
    keep_memory()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rows = []
    for name in options.rows:
        rows.append(row_of(name, options))
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what one row kept, the next needs
    if distributed.get_rank() == 0:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump({"elements": gpt2_model.size(options.model).elements,
                       "rows": rows}, stream)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
