"""Files that hold secrets: readable by their owner only, never half-written."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from surefoot.errors import KeyMissing, Misconfigured

if sys.platform != "win32":
    import fcntl

__all__ = ["locked", "read_private", "replace_private", "write_private"]


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

    The new file belongs to whom the old one belonged: root may turn the keys of a service.

    Raises:
        Misconfigured: It cannot be written; the old file is as it was.
    """
    # A link is followed, as mounted secrets often are links.
    file = Path(os.path.realpath(path))
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            _keep_owner(file, out.fileno(), where=where)
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


def _keep_owner(file: Path, handle: int, *, where: str) -> None:
    """Gives a new file, before anything is in it, to the owner and group of the one it replaces."""
    try:
        old = file.stat()
    except FileNotFoundError:
        return
    new = os.fstat(handle)
    if sys.platform == "win32" or (old.st_uid, old.st_gid) == (new.st_uid, new.st_gid):
        return
    try:
        os.fchown(handle, old.st_uid, old.st_gid)
    except PermissionError:
        raise Misconfigured(
            field=where,
            reason=(
                f"belongs to user {old.st_uid} and group {old.st_gid}, to whom a new file cannot "
                "be given from here; run this as that user, or as root"
            ),
        ) from None


@contextmanager
def locked(path: str | os.PathLike[str], *, where: str) -> Iterator[None]:
    """Keeps others that lock the same file away, from reading it to replacing it.

    The file itself is locked, so nothing is left beside it; who waited for a file that has been
    replaced meanwhile waits for the new one. Where there are no such locks (Windows, some network
    folders), nobody is kept away.

    Raises:
        KeyMissing: The file is not there or cannot be read.
    """
    handle, problem = -1, ""
    try:
        handle = _lock(path)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "is no path"
    if problem:  # raised here, so that no error holds the path in its context
        raise KeyMissing(key_id=None, reason=f"{where}: {problem}")
    try:
        yield
    finally:
        os.close(handle)


def _lock(path: str | os.PathLike[str]) -> int:
    while True:
        try:
            handle = os.open(path, os.O_RDWR)  # a network folder wants it for a lock
        except PermissionError:
            handle = os.open(path, os.O_RDONLY)
        keep = False
        try:
            if sys.platform != "win32":
                with suppress(OSError):  # this file system has none
                    fcntl.flock(handle, fcntl.LOCK_EX)
            keep = os.path.samestat(os.fstat(handle), Path(path).stat())
        except FileNotFoundError:
            keep = False  # being replaced
        finally:
            if not keep:
                os.close(handle)
        if keep:
            return handle
