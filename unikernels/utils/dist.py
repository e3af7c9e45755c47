"""Starting torch.distributed as DeepGEMM's scripts do, printing once, and gathering tensors of different size.

NCCL on CUDA, gloo elsewhere. Nothing here knows a kernel; symmetric memory for Mega MoE lives with that operation.
"""

from __future__ import annotations

import math
import os

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InvalidArgumentError

_local_rank = 0


def init_dist(local_rank: int, num_local_ranks: int) -> tuple[int, int, dist.ProcessGroup]:
    """Join the process group of all ranks and return (rank, number of ranks, group).

    Rank = RANK * num_local_ranks + local_rank, with the environment variables MASTER_ADDR (127.0.0.1), MASTER_PORT
    (8361), WORLD_SIZE = number of nodes (1) and RANK = this node (0). With CUDA the backend is NCCL and device
    `local_rank` becomes the current one and torch's default; without, it is gloo and the default device is the CPU.

    Raises:
        InvalidArgumentError: local_rank or RANK is out of range.

    Contract: DeepGEMM 2.8.2, ``utils.init_dist``.
    """
    global _local_rank
    num_nodes, node = int(os.getenv("WORLD_SIZE", "1")), int(os.getenv("RANK", "0"))
    if not 0 <= local_rank < num_local_ranks or not 0 <= node < num_nodes:
        raise InvalidArgumentError(
            f"init_dist: local_rank={local_rank} of num_local_ranks={num_local_ranks} on node RANK={node} of "
            f"WORLD_SIZE={num_nodes}, expected 0 <= local_rank < num_local_ranks and 0 <= RANK < WORLD_SIZE. "
            f"WORLD_SIZE counts nodes here, not processes."
        )
    address, port = os.getenv("MASTER_ADDR", "127.0.0.1"), os.getenv("MASTER_PORT", "8361")
    has_cuda = torch.cuda.is_available()
    if has_cuda:
        torch.cuda.set_device(local_rank)
    world = num_nodes * num_local_ranks
    dist.init_process_group(
        backend="nccl" if has_cuda else "gloo",
        init_method=f"tcp://{address}:{port}",
        world_size=world,
        rank=node * num_local_ranks + local_rank,
    )
    torch.set_default_device(torch.device("cuda", local_rank) if has_cuda else torch.device("cpu"))
    _local_rank = local_rank
    group = dist.new_group(list(range(world)))
    assert isinstance(group, dist.ProcessGroup)  # every rank is a member
    return dist.get_rank(), dist.get_world_size(), group


def uneven_all_gather(tensor: Tensor, dim: int = 0, group: dist.ProcessGroup | None = None) -> Tensor:
    """Gather tensors that differ in size along `dim` and concatenate them in rank order, on every rank.

    Args:
        tensor: same dtype, number of dimensions and other sizes on all ranks; any dtype, also FP8.
        dim: the dimension that may differ.
        group: process group; None = the default one.

    Raises:
        InvalidArgumentError: dim is out of range, or another size differs between ranks (raised on every rank).

    Contract: DeepGEMM 2.8.2, ``utils.uneven_all_gather``.
    """
    if not -tensor.dim() <= dim < tensor.dim():
        raise InvalidArgumentError(f"uneven_all_gather: dim={dim} is out of range for shape {tuple(tensor.shape)}.")
    moved = tensor.movedim(dim, 0).contiguous()
    shape = torch.tensor(moved.shape, dtype=torch.int64, device=tensor.device)
    gathered = [torch.empty_like(shape) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, shape, group=group)
    shapes = [tuple(one.tolist()) for one in gathered]
    if any(one[1:] != shapes[0][1:] for one in shapes):
        raise InvalidArgumentError(
            f"uneven_all_gather: shapes with dim {dim} moved to the front are {shapes}; only the first size may differ."
        )
    # Bytes, because not every collective library knows every dtype.
    num_bytes = [math.prod(one) * tensor.element_size() for one in shapes]
    mine = torch.zeros(max(num_bytes), dtype=torch.uint8, device=tensor.device)
    if moved.numel():
        mine[: moved.numel() * moved.element_size()] = moved.view(-1).view(torch.uint8)
    buffers = [torch.empty_like(mine) for _ in shapes]
    dist.all_gather(buffers, mine, group=group)
    parts = [
        buffer[:size].view(tensor.dtype).view(one) if size else tensor.new_empty(one)
        for buffer, size, one in zip(buffers, num_bytes, shapes, strict=True)
    ]
    return torch.cat(parts).movedim(0, dim).contiguous()


def dist_print(s: str = "", once_in_node: bool = False) -> None:
    """Print `s` on every rank (or only on local rank 0 of each node), then wait for all ranks.

    Contract: DeepGEMM 2.8.2, ``utils.dist.dist_print``.
    """
    if not once_in_node or _local_rank == 0:
        print(s, flush=True)
    dist.barrier()
