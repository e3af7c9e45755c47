"""init_dist, uneven_all_gather and dist_print, run for real with gloo in two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from unikernels import utils
from unikernels.errors import InvalidArgumentError

_SCRIPT = """
import sys, torch, torch.distributed as dist
from unikernels.errors import InvalidArgumentError
from unikernels.utils import dist as our_dist, init_dist, uneven_all_gather

local_rank = int(sys.argv[1])
rank, world, group = init_dist(local_rank, 2)
assert (rank, world, dist.get_backend()) == (local_rank, 2, "gloo"), (rank, world)

full = torch.arange(30, dtype=torch.float32).view(5, 6)
for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64):
    whole = full.to(dtype)
    for dim, cut in ((0, 2), (0, 0), (0, 5), (1, 1), (-1, 4)):
        mine = whole.narrow(dim, 0, cut) if rank == 0 else whole.narrow(dim, cut, whole.size(dim) - cut)
        gathered = uneven_all_gather(mine, dim, group)
        assert gathered.dtype == dtype and gathered.is_contiguous()
        assert torch.equal(gathered.float(), whole.float()), (dtype, dim, cut)
assert uneven_all_gather(torch.empty(0, 3)).shape == (0, 3)
try:
    uneven_all_gather(torch.ones(2, 3 + rank))
except InvalidArgumentError as error:
    assert "[(2, 3), (2, 4)]" in str(error), error
else:
    raise AssertionError("a size mismatch must be refused")
our_dist.dist_print(f"rank {rank}")
our_dist.dist_print("once", once_in_node=True)
dist.destroy_process_group()
"""


def test_two_processes():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {name: value for name, value in environment.items() if name not in ("RANK", "WORLD_SIZE")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(rank)],
            env={**environment, "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        results = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors
    assert [line for output, _ in results for line in output.splitlines()] == ["rank 0", "once", "rank 1"]


@pytest.mark.parametrize(("local_rank", "num_local_ranks"), [(2, 2), (-1, 2)])
def test_init_dist_refuses_ranks_out_of_range(local_rank, num_local_ranks, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(InvalidArgumentError, match=rf"init_dist: local_rank={local_rank} of num_local_ranks=2"):
        utils.init_dist(local_rank, num_local_ranks)


def test_uneven_all_gather_refuses_a_missing_dimension():
    with pytest.raises(InvalidArgumentError, match=r"dim=2 is out of range for shape \(3, 4\)"):
        utils.uneven_all_gather(torch.ones(3, 4), dim=2)
