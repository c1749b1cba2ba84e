"""A character-level GPT, trained by several workers through Ballast.

    tools/lab run --workers 4 -- /usr/bin/python3 train_gpt.py --steps 200
    python3 -m ballast.run --workers 4 train_gpt.py --steps 200

The model is plain PyTorch. Its parameters *are* the weights that the daemon
publishes and its gradients *are* this rank's gradient segment: nothing is
copied. The optimizer runs in the daemon.

The text is real and on every Debian: the licenses under
/usr/share/common-licenses. A rank's batch is a function of (seed, step, rank),
so a worker that starts again computes the same gradient.

--baseline trains the same model on the same batches in one process with
PyTorch's own AdamW and the mean gradient of all ranks, for comparison.
"""

import argparse
import glob
import hashlib
import json
import math
import os
import sys
import time
import warnings
from typing import Dict, List, Tuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import ballast

CONTEXT = 96
BATCH = 8
WIDTH = 96
HEADS = 4
LAYERS = 2
LEARNING_RATE = 3e-3
WARMUP_STEPS = 10
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
CLIPPING = 1.0
NO_DECAY = ("*.bias", "*norm*")
SHOWN_LOSSES = 10


def load_text() -> Tuple[torch.Tensor, int]:
    """The corpus as numbers of characters, and how many kinds there are."""
    paths = sorted(path for path in glob.glob("/usr/share/common-licenses/*")
                   if not os.path.islink(path))
    text = b"".join(open(path, "rb").read() for path in paths)
    kinds, codes = np.unique(np.frombuffer(text, np.uint8),
                             return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), len(kinds)


def batch(text: torch.Tensor, seed: int, step: int,
          rank: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one rank's step."""
    key = hashlib.sha256(b"%d %d %d" % (seed, step, rank)).digest()
    generator = torch.Generator().manual_seed(
        int.from_bytes(key[:7], "little"))
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,),
                           generator=generator)
    rows = starts[:, None] + torch.arange(CONTEXT + 1)
    return text[rows[:, :-1]], text[rows[:, 1:]]


class Layer(nn.Module):
    """Attention and a two-layer network, each on a normalised residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.merge = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        mask = torch.full((CONTEXT, CONTEXT), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (part.view(rows, length, HEADS, -1).transpose(1, 2)
                   for part in self.attention(self.norm1(x)).chunk(3, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + self.mask
        mixed = (scores.softmax(3) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.merge(mixed)
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):

    def __init__(self, num_kinds: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_kinds, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_kinds)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=0.05)

    def loss(self, inputs: torch.Tensor,
             targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(inputs) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1),
                                        targets.flatten())


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step <= WARMUP_STEPS:
        return LEARNING_RATE * step / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return LEARNING_RATE * (0.55 + 0.45 * math.cos(math.pi * done))


def share(model: nn.Module, session: ballast.Session) -> None:
    """Makes parameters and gradients of `model` views of shared memory."""
    with warnings.catch_warnings():
        # "not writable": right, only the daemon writes weights.
        warnings.simplefilter("ignore", UserWarning)
        for name, parameter in model.named_parameters():
            parameter.data = torch.from_numpy(session.params[name])
            parameter.grad = torch.from_numpy(session.grads[name])


def digest(weights: Dict[str, np.ndarray]) -> str:
    """SHA-256 of all weights, bit for bit."""
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(name.encode())
        total.update(np.ascontiguousarray(weights[name]).tobytes())
    return total.hexdigest()


class Report:
    """Progress and summary; travels in the cursor, so that a worker that
    starts again still knows how the run began."""

    def __init__(self, cursor: bytes = b""):
        self.losses: List[float] = []
        self.first: List[float] = []
        self.last: List[float] = []
        self.seconds = 0.0
        if cursor:
            self.first, self.last = json.loads(cursor)

    def add(self, loss: float) -> None:
        self.losses.append(loss)
        self.first = (self.first + [loss])[:SHOWN_LOSSES]
        self.last = (self.last + [loss])[-SHOWN_LOSSES:]

    def cursor_after(self, loss: float) -> bytes:
        """What to commit with the step that had this loss."""
        return json.dumps([(self.first + [loss])[:SHOWN_LOSSES],
                           (self.last + [loss])[-SHOWN_LOSSES:]]).encode()

    def summary(self) -> str:
        return "loss %.4f -> %.4f" % (np.mean(self.first), np.mean(self.last))


def train(options: argparse.Namespace, model: Gpt,
          text: torch.Tensor) -> Tuple[Report, Dict[str, np.ndarray], int]:
    """Through Ballast; (report, published weights, rank)."""
    job = None if os.environ.get("BALLAST_JOB") else "train-gpt"
    tensors = {name: parameter.detach().numpy()
               for name, parameter in model.named_parameters()}
    with ballast.Session(
            job=job, tensors=tensors,
            optimizer={"name": "adamw", "lr": LEARNING_RATE, "betas": BETAS,
                       "weight_decay": WEIGHT_DECAY},
            param_groups=[{"match": NO_DECAY, "weight_decay": 0.0}],
            gradient_clipping=CLIPPING, exchange=options.exchange) as session:
        share(model, session)
        report = Report(session.cursor)
        start = time.monotonic()
        for step in session.steps(options.steps):
            for group in session.param_groups:
                group["lr"] = learning_rate(step, options.steps)
            for parameter in model.parameters():
                parameter.grad.zero_()
            loss = model.loss(*batch(text, options.seed, step, session.rank))
            loss.backward()
            try:
                result = session.step(cursor=report.cursor_after(loss.item()))
            except ballast.Aborted as error:
                print("step %d is repeated: %s" % (step, error), flush=True)
                continue
            report.add(loss.item())
            if session.rank == 0 and (step % options.every == 0 or step == 1):
                print("step %d/%d: loss %.4f, gradient norm %.3f, lr %.2e, "
                      "daemon %.1f ms" % (step, options.steps, loss.item(),
                                          result.grad_norm, result.lr,
                                          1e3 * result.seconds), flush=True)
        report.seconds = time.monotonic() - start
        rank = session.rank
        weights = dict(session.params)
    return report, weights, rank


def baseline(options: argparse.Namespace, model: Gpt,
             text: torch.Tensor) -> Tuple[Report, Dict[str, np.ndarray], int]:
    """The same in one process with PyTorch alone."""
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        is_other = name.endswith(".bias") or "norm" in name
        (others if is_other else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY,
        foreach=False)
    report = Report()
    start = time.monotonic()
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        losses = [model.loss(*batch(text, options.seed, step, rank))
                  for rank in range(options.baseline)]
        (sum(losses) / len(losses)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIPPING)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps)
        optimizer.step()
        report.add(losses[0].item())
    report.seconds = time.monotonic() - start
    weights = {name: parameter.detach().numpy()
               for name, parameter in model.named_parameters()}
    return report, weights, 0


def parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=20, metavar="N",
                        help="a progress line every N steps")
    parser.add_argument("--exchange",
                        default=os.environ.get("BALLAST_LAB_PRESET", "exact"),
                        help="exchange preset")
    parser.add_argument("--baseline", type=int, metavar="W",
                        help="plain PyTorch over the batches of W ranks")
    parser.add_argument("--json", metavar="FILE",
                        help="rank 0 writes its losses and times there")
    options = parser.parse_args(argv)
    if options.steps < 1 or options.every < 1:
        parser.error("--steps and --every must be at least 1")
    return options


def main(argv: List[str]) -> None:
    options = parse(argv)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    text, num_kinds = load_text()
    model = Gpt(num_kinds)
    run = baseline if options.baseline else train
    report, weights, rank = run(options, model, text)
    hexadecimal = digest(weights)
    print("rank %d digest %s" % (rank, hexadecimal), flush=True)
    if rank != 0:
        return
    steps = max(1, len(report.losses))
    print(report.summary())
    print("%.4f seconds per step, %d parameters, %d characters of text"
          % (report.seconds / steps, sum(w.size for w in weights.values()),
             len(text)))
    if os.environ.get("BALLAST_LAB_DIR"):
        print("logs of workers and daemon: %s" % os.environ["BALLAST_LAB_DIR"])
    sys.stdout.flush()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump({"losses": report.losses, "digest": hexadecimal,
                       "seconds": report.seconds,
                       "steps": len(report.losses)}, stream)


if __name__ == "__main__":
    main(sys.argv[1:])
