"""Files that hold secrets: readable by their owner only, never half-written."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from surefoot.errors import KeyMissing, Misconfigured

__all__ = ["read_private", "replace_private", "write_private"]


def read_private(path: str | os.PathLike[str], *, where: str) -> str:
    """Text of a file that only its owner may read.

    Args:
        path: The file.
        where: What it is, for messages; the path itself may be a secret put there by mistake.

    Raises:
        KeyMissing: The file is not there or cannot be read.
        Misconfigured: Others may read it.
    """
    mode, text, problem = 0, "", ""
    try:
        mode = Path(path).stat().st_mode
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except ValueError:
        problem = "is no path, or no text"
    if problem:  # raised here, so that no error holds the path in its context
        raise KeyMissing(key_id=None, reason=f"{where}: {problem}")
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise Misconfigured(
            field=where,
            reason=f"may be read by others (mode {stat.S_IMODE(mode):04o}); chmod 600 it",
        )
    return text


def write_private(path: str | os.PathLike[str], text: str, *, where: str) -> None:
    """Writes a new file with mode 0600; never overwrites one.

    Raises:
        Misconfigured: The file exists or cannot be written.
    """
    file = Path(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Misconfigured(field=where, reason="exists already") from None
    except OSError as error:
        raise Misconfigured(field=where, reason=error.strerror or type(error).__name__) from None
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def replace_private(path: str | os.PathLike[str], text: str, *, where: str) -> None:
    """Replaces a file at once: whoever reads it sees the old text or the new one, whole.

    Raises:
        Misconfigured: It cannot be written; the old file is as it was.
    """
    # A link is followed, as mounted secrets often are links.
    file = Path(os.path.realpath(path))
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        Path(temporary).replace(file)
        temporary = None
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise Misconfigured(field=where, reason=error.strerror or type(error).__name__) from None
    finally:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
