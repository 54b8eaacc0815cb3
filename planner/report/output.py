"""Where results go: standard output, or a file that is complete or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from pathlib import Path

from planner.errors import InputError


class Output:
    """A file to be written at the end, whose place is tried at once.

    The text goes to a temporary file beside it, which takes its name when it is complete. Devices and pipes
    are written directly.
    """

    def __init__(self, target: str, field: str = "--output") -> None:
        self.field, self.target = field, target
        self.temporary: str | None = None
        try:
            self.path = Path(os.path.realpath(target))
            self.mode = self.path.stat().st_mode if self.path.exists() else None
            if self.mode is not None and stat.S_ISDIR(self.mode):
                raise IsADirectoryError(0, "is a directory")
            if self.mode is None or stat.S_ISREG(self.mode):
                if self.mode is not None and not os.access(self.path, os.W_OK):
                    raise PermissionError(0, "is read-only")
                handle, self.temporary = tempfile.mkstemp(
                    prefix=f".{self.path.name[:40]}.", dir=self.path.parent
                )
                os.close(handle)
        except (OSError, ValueError) as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Exception) -> InputError:
        reason = getattr(error, "strerror", None) or str(error)
        return InputError.of(self.field, self.target, f"cannot be written: {reason}")

    def write(self, text: str) -> None:
        """Write the whole text.

        Raises
        ------
        InputError
            It cannot be written after all (the disk is full, say); the target is as it was.
        """
        try:
            if self.temporary is None:
                with open(self.path, "w", encoding="utf-8") as stream:
                    stream.write(text)
                return
            with open(self.temporary, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(self.temporary, stat.S_IMODE(self.mode) if self.mode is not None else 0o666 & ~_umask())
            os.replace(self.temporary, self.path)
            self.temporary = None
        except (OSError, ValueError) as error:
            raise self._refusal(error) from None

    def close(self) -> None:
        """Remove the temporary file if it was not used."""
        if self.temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.temporary)
            self.temporary = None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def to_stdout(text: str) -> None:
    """Write a text to standard output, with a substitute for characters its encoding lacks, and flush.

    Raises
    ------
    InputError
        It cannot be written (the disk is full, say). A closed pipe stays an OSError: nobody reads on.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        # What is left in the buffer would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InputError.of("standard output", "", f"cannot be written: {error.strerror}") from None
