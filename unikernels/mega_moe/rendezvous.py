"""Agreement of all ranks of a group before they exchange data: same call, same arguments, nobody refused it.

A rank whose arguments are wrong posts its refusal and raises at once; the others learn it in their next call instead of
waiting for data that never comes. Knows nothing of Mega MoE itself.
"""

from __future__ import annotations

import datetime
import struct
import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import ArgumentTypeError, InvalidArgumentError, UnikernelsError

_NUM_FIELDS = 16
_TEXT_BYTES = 1024
_MESSAGE_BYTES = 8 * (2 + _NUM_FIELDS) + _TEXT_BYTES
#: Place of the name of the call among its fields, as an index into this tuple.
CALLS = ("SymmBuffer", "fp8_fp4_mega_moe", "bf16_mega_moe")


def rank_and_size(function: str, group: Any) -> tuple[int, int]:
    """Return (rank in group, number of ranks); None is a group of this process alone.

    Raises:
        ArgumentTypeError: not a process group. InvalidArgumentError: this process is not a member.
    """
    if group is None:
        return 0, 1
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        if dist.is_available() and group is dist.GroupMember.NON_GROUP_MEMBER:
            raise InvalidArgumentError(f"{function}: this process is not a member of group. Only members may call it.")
        raise ArgumentTypeError(
            f"{function}: group is a {type(group).__name__}, expected a torch.distributed.ProcessGroup, or None for this "
            f"process alone."
        )
    return dist.get_rank(group), dist.get_world_size(group)


_channels: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def channel_of(function: str, group: Any) -> Any:
    """Return a gloo group with the ranks of `group`, made once per group; collective over it. None for one rank.

    Host messages and CPU tensors travel there, so that a refused call never shifts the caller's own collectives on
    `group`, and `group` itself may be one that carries device tensors only.
    """
    if group is None or dist.get_world_size(group) == 1:
        return None
    if group not in _channels:
        ranks = dist.get_process_group_ranks(group)
        try:
            # new_group sorts its ranks: a group in another order has to serve as its own channel.
            _channels[group] = (
                group
                if ranks != sorted(ranks)
                else dist.new_group(ranks, timeout=_timeout_of(group), backend="gloo", use_local_synchronization=True)
            )
        except RuntimeError as error:
            raise _unreachable(function, group, error) from error
    return _channels[group]


def _timeout_of(group: Any) -> datetime.timedelta | None:
    """Return how long collectives of `group` wait; None (torch's default) where torch does not tell."""
    try:
        timeout: datetime.timedelta = group._get_backend(torch.device("cpu")).options._timeout
    except (AttributeError, RuntimeError):
        return None
    return timeout


def _unreachable(call: str, group: Any, error: RuntimeError) -> UnikernelsError:
    return UnikernelsError(
        f"{call}: rank {dist.get_rank(group)} could not meet the other {dist.get_world_size(group) - 1} ranks of its group: "
        f"{error}. All ranks must make the same calls in the same order, within the timeout of the group."
    )


def float_bits(value: float) -> int:
    """Return a float as an integer field."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


class Rendezvous:
    """The meeting point of the ranks of a channel (None: one rank). Every call counts on every rank, also a refused one."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._num_ranks = 1 if channel is None else dist.get_world_size(channel)
        self._posted: list[tuple[Any, list[Tensor]]] = []

    def refuse(self, call: str, reason: str) -> None:
        """Let the other ranks know that this one raises instead of taking part; does not wait for them."""
        if self._num_ranks == 1:
            return
        self._posted = [one for one in self._posted if not one[0].is_completed()]
        message, gathered = self._message(call, {}, 0, reason), self._empty_messages()
        work = dist.all_gather(gathered, message, group=self._channel, async_op=True)
        self._posted.append((work, gathered))

    def agree(self, call: str, fields: Mapping[str, int], own: int) -> list[int]:
        """Return `own` of every rank, once all ranks make this `call` with equal `fields`.

        Raises:
            UnikernelsError: another rank makes another call, has other fields, refused, or cannot be reached.
        """
        if self._num_ranks == 1:
            return [own]
        gathered = self._empty_messages()
        try:
            dist.all_gather(gathered, self._message(call, fields, own, ""), group=self._channel)
        except RuntimeError as error:
            raise _unreachable(call, self._channel, error) from error
        heads = [message[: _MESSAGE_BYTES - _TEXT_BYTES].view(torch.int64).tolist() for message in gathered]
        texts = [bytes(message[-_TEXT_BYTES:].tolist()).rstrip(b"\0").decode(errors="replace") for message in gathered]
        refusals = [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text]
        if refusals:
            raise UnikernelsError(
                f"{call}: not carried out on any rank, because another rank refused its call. {'; '.join(refusals)}"
            )
        self._compare(call, list(fields), heads)
        return [head[1] for head in heads]

    def _compare(self, call: str, names: list[str], heads: list[list[int]]) -> None:
        calls = [CALLS[head[0]] for head in heads]
        if len(set(calls)) > 1:
            made = ", ".join(f"rank {rank} {name}" for rank, name in enumerate(calls))
            raise UnikernelsError(
                f"{call}: the ranks make different calls: {made}. All must make the same, in one order."
            )
        for place, name in enumerate(names):
            values = [head[2 + place] for head in heads]
            if len(set(values)) > 1:
                shown = (
                    [struct.unpack("<d", struct.pack("<q", value))[0] for value in values]
                    if "clamp" in name
                    else values
                )
                seen = ", ".join(f"rank {rank} {value}" for rank, value in enumerate(shown))
                raise UnikernelsError(f"{call}: {name} differs between ranks: {seen}. All ranks must pass the same.")

    def _message(self, call: str, fields: Mapping[str, int], own: int, text: str) -> Tensor:
        values = [CALLS.index(call), own, *fields.values()]
        head = torch.tensor(values + [0] * (2 + _NUM_FIELDS - len(values)), dtype=torch.int64)
        encoded = text.encode()[:_TEXT_BYTES]
        tail = torch.tensor(list(encoded.ljust(_TEXT_BYTES, b"\0")), dtype=torch.uint8)
        return torch.cat([head.view(torch.uint8), tail])

    def _empty_messages(self) -> list[Tensor]:
        return [torch.empty(_MESSAGE_BYTES, dtype=torch.uint8) for _ in range(self._num_ranks)]
