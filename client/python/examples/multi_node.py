"""Several nodes, started by torchrun: a classifier with BatchNorm that ends
with the same bits on every rank.

On each of N nodes, with a daemon that runs there (listen.peer on port 7470):

    torchrun --nnodes N --node_rank I --nproc_per_node 2 --rdzv_id flowers \\
        --master_addr HOST0 --master_port 29500 multi_node.py

HOST0 is the first node. The daemons meet at its port 7470, unless
BALLAST_COORDINATOR says otherwise on rank 0's node: the process group's store
tells the others. On Debian's torch 1.13, python3 -m torch.distributed.run
-r 1 -t 1 instead of torchrun.

The process group is optional; here it averages the validation loss and tells
the nodes where to meet. Gradients, weights and BatchNorm's running statistics
(rank 0's on all ranks) never travel through it.
"""

import hashlib

import torch
from torch import distributed, nn
from torch.nn import functional

import ballast.torch

STEPS, ROWS, FEATURES, CLASSES = 60, 32, 20, 5


def batch(step: int, rank: int, teacher: torch.Tensor):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(ROWS, FEATURES, generator=generator)
    return inputs, (inputs @ teacher).argmax(1)


def digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode() + value.contiguous().numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.BatchNorm1d(64),
                          nn.ReLU(), nn.Linear(64, CLASSES))
    teacher = torch.randn(FEATURES, CLASSES)
    optimizer = ballast.torch.Optimizer(
        model.parameters(), torch.optim.AdamW, lr=1e-2, model=model)
    rank = optimizer.session.rank
    for step in optimizer.steps(STEPS):
        model.train()
        inputs, labels = batch(step, rank, teacher)
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20:
            continue
        model.eval()
        with torch.no_grad():
            inputs, labels = batch(0, rank, teacher)
            loss = functional.cross_entropy(model(inputs), labels)
        distributed.all_reduce(loss)
        if rank == 0:
            print("step %d validation loss %.5f" % (
                step, loss / distributed.get_world_size()), flush=True)
    print("rank %d digest %s" % (rank, digest(model)), flush=True)
    optimizer.close()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
