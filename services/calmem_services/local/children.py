"""What a child process of ours does when its parent dies."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel ends this child when its parent is gone, however it went (Linux).

    A child in its own session also does not get the terminal's Ctrl-C, which the parent turns into an orderly stop.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
