"""Mega MoE over real process groups of 1, 2 and 4 ranks (gloo): results, uneven tokens, and mistakes of one rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

WORLD = 4
SCRIPT = Path(__file__).with_name("mega_moe_rank.py")


def test_groups_of_one_two_and_four_ranks():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(WORLD), str(port)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        outputs = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failed = [f"rank {rank}:\n{outputs[rank][1]}" for rank, one in enumerate(processes) if one.returncode]
    assert not failed, "\n".join(failed)
