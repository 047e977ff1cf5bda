"""What a child process of ours does when its parent dies."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """For `preexec_fn`: the kernel sends this child the signal when its parent is gone, however it went (Linux).

    A child in its own session also does not get the terminal's Ctrl-C, which the parent turns into an orderly stop.
    The kernel counts the thread that started the child as its parent: start children from a thread that stays.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
