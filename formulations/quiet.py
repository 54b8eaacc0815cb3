"""Keep standard output clean while a solver runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

#: File descriptor of standard output, whatever `sys.stdout` has become (a capture, a closed file, None).
STDOUT = 1


def _flush() -> None:
    """Empty the buffers of Python's and of C's standard output."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        # Without this, what C code printed into a pipe would come out after the descriptor is restored.
        ctypes.CDLL("ucrtbase" if os.name == "nt" else None).fflush(None)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop everything written to file descriptor 1 inside the block, by C code too.

    HiGHS prints a banner on its first construction, before any option can silence it. The descriptor belongs
    to the whole process: other threads are silenced as well. Standard error is left alone. If descriptor 1
    is closed, it is closed again afterwards.
    """
    _flush()
    try:
        saved: int | None = os.dup(STDOUT)
    except OSError:
        saved = None
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != STDOUT:
            os.dup2(nowhere, STDOUT)
            os.close(nowhere)
        yield
    finally:
        _flush()
        if saved is not None:
            os.dup2(saved, STDOUT)
            os.close(saved)
        else:
            with contextlib.suppress(OSError):
                os.close(STDOUT)
