"""A disk under SQLite that fails on order: a VFS around the library's own, in this process.

It is registered with the very library that `sqlite3` of the standard library is linked to, and
hands everything through but what a `DiskFault` names. Each fault that happens is counted and kept
with the file, the operation and its number, so that a test can prove that it hit.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "CANTOPEN",
    "FULL",
    "IOERR_FSYNC",
    "IOERR_READ",
    "IOERR_SHMMAP",
    "IOERR_TRUNCATE",
    "IOERR_WRITE",
    "Disk",
    "DiskFault",
    "faulty_disk",
]

FULL = 13
CANTOPEN = 14
IOERR_READ = 10 | 1 << 8
IOERR_WRITE = 10 | 3 << 8
IOERR_FSYNC = 10 | 4 << 8
IOERR_TRUNCATE = 10 | 6 << 8
IOERR_SHMMAP = 10 | 21 << 8
_OK = 0

_Close = ctypes.CFUNCTYPE(c_int, c_void_p)
_ReadWrite = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64)
_Sync = ctypes.CFUNCTYPE(c_int, c_void_p, c_int)
_ShmMap = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int, c_void_p)
#: The name stays a pointer: SQLite keeps it, and looks at what lies behind it.
_Open = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods``, version 3."""

    _fields_ = [
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", c_void_p),
        ("truncate", c_void_p),
        ("sync", c_void_p),
        *[(f"rest_{n}", c_void_p) for n in range(7)],
        ("shm_map", c_void_p),
        *[(f"more_{n}", c_void_p) for n in range(5)],
    ]


class _Vfs(ctypes.Structure):
    """``sqlite3_vfs``, version 3."""

    _fields_ = [
        ("version", c_int),
        ("size", c_int),
        ("path_max", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", c_void_p),
        *[(f"rest_{n}", c_void_p) for n in range(15)],
    ]


#: How many of the function pointers each version of `_Methods` has.
_METHODS_SIZE = {
    1: _Methods.shm_map.offset,
    2: _Methods.more_2.offset + ctypes.sizeof(c_void_p),
    3: ctypes.sizeof(_Methods),
}


@dataclass(frozen=True)
class DiskFault:
    """What fails.

    Attributes:
        operation: ``read``, ``write``, ``sync``, ``truncate``, ``open`` or ``shm``.
        file: Name of the file, e.g. ``a.db-wal``.
        number: Which operation of its kind on that file, from 1.
        code: What SQLite is told.
        lasting: Every later operation of the kind on files of this database fails too, until
            `Disk.mend`.
        torn: Half of what is written arrives before the error. Or, of a sync: nothing.
    """

    operation: str
    file: str
    number: int
    code: int
    lasting: bool = False
    torn: bool = False

    @property
    def of_closing(self) -> bool:
        """It hits the file itself, to which SQLite writes when its last connection is closed."""
        return self.operation in ("write", "sync", "truncate") and "-" not in self.file

    def __str__(self) -> str:
        kind = " torn" * self.torn + " lasting" * self.lasting
        return f"{self.operation} {self.file} #{self.number} code {self.code}{kind}"


class Disk:
    """The disk of all SQLite connections that are opened while it is in place.

    Attributes:
        counts: How often each (operation, file) was asked for since `plan`.
        hits: Faults that happened, each with the operation and file that it hit.
        on_hit: Is told each fault that happens.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.hits: list[str] = []
        self.on_hit: Callable[[str], None] = lambda _: None
        self._lock = threading.Lock()
        self._fault: DiskFault | None = None
        self._broken = False
        self._names: dict[int, str] = {}
        self._inner: dict[int, _Methods] = {}
        self._outer: dict[int, _Methods] = {}
        self._kept: list[Any] = []
        # The symbols of the library that the module itself uses, linked statically or not.
        self._library = ctypes.CDLL(_sqlite3.__file__)
        self._library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._library.sqlite3_vfs_find.argtypes = [c_char_p]
        self._library.sqlite3_vfs_register.argtypes = [ctypes.POINTER(_Vfs), c_int]
        self._original = self._library.sqlite3_vfs_find(None)
        self._vfs = _Vfs.from_buffer_copy(self._original.contents)
        self._vfs.name = b"surefoot-faulty-disk"
        self._vfs.next = None
        open_ = _Open(self._original.contents.open)
        self._vfs.open = self._pointer(_Open(self._opening(open_)))

    def plan(self, fault: DiskFault | None, on_hit: Callable[[str], None] | None = None) -> None:
        """Counts from here on, and lets this happen."""
        with self._lock:
            self.counts.clear()
            self.hits = []
            self.on_hit = on_hit or (lambda _: None)
            self._fault = fault
            self._broken = False

    def mend(self) -> None:
        """Nothing fails any more."""
        with self._lock:
            self._fault = None
            self._broken = False

    def insert(self) -> None:
        """Makes this the disk of connections that are opened from now on."""
        if self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1) != _OK:
            raise RuntimeError("SQLite does not take the VFS")

    def remove(self) -> None:
        """Gives new connections the real disk again."""
        self._library.sqlite3_vfs_register(self._original, 1)

    # --- called by SQLite -----------------------------------------------------------------------

    def _decide(self, operation: str, file: str) -> DiskFault | None:
        with self._lock:
            self.counts[operation, file] += 1
            fault = self._fault
            if fault is None or operation != fault.operation:
                return None
            first = file == fault.file and self.counts[operation, file] == fault.number
            same = file.startswith(fault.file.split("-")[0])
            if not first and not (self._broken and same):
                return None
            self._broken = fault.lasting
            self.hits.append(f"{fault} (at {file})")
            text = self.hits[-1]
        self.on_hit(text)
        return fault

    def _pointer(self, function: Any) -> int | None:
        self._kept.append(function)
        return ctypes.cast(function, c_void_p).value

    def _opening(self, inner: Any) -> Callable[..., int]:
        def xopen(vfs: int, name: int | None, file: int, flags: int, out: int | None) -> int:
            path = ctypes.string_at(name).decode(errors="replace") if name else "temporary"
            shown = Path(path).name
            fault = self._decide("open", shown)
            if fault is not None:
                ctypes.cast(file, ctypes.POINTER(c_void_p))[0] = None
                return fault.code
            code: int = inner(vfs, name, file, flags, out)
            methods = ctypes.cast(file, ctypes.POINTER(c_void_p))
            if code == _OK and methods[0]:
                self._names[file] = shown
                methods[0] = ctypes.addressof(self._wrapped(methods[0]))
            return code

        return xopen

    def _wrapped(self, address: int) -> _Methods:
        """The library's functions with ours between; one table for each of the library's."""
        with self._lock:
            if address in self._outer:
                return self._outer[address]
            inner, outer = _Methods(), _Methods()
            size = _METHODS_SIZE[min(c_int.from_address(address).value, 3)]
            for table in (inner, outer):
                ctypes.memmove(ctypes.addressof(table), address, size)
            outer.read = self._pointer(_ReadWrite(self._reading(_ReadWrite(inner.read))))
            outer.write = self._pointer(_ReadWrite(self._writing(_ReadWrite(inner.write))))
            outer.sync = self._pointer(_Sync(self._syncing(_Sync(inner.sync))))
            outer.truncate = self._pointer(
                _Truncate(self._passing("truncate", _Truncate(inner.truncate)))
            )
            if inner.shm_map:
                outer.shm_map = self._pointer(_ShmMap(self._passing("shm", _ShmMap(inner.shm_map))))
            self._inner[address], self._outer[address] = inner, outer
            return outer

    def _passing(self, operation: str, inner: Any) -> Callable[..., int]:
        def pass_on(file: int, *rest: Any) -> int:
            fault = self._decide(operation, self._names[file])
            return int(inner(file, *rest)) if fault is None else fault.code

        return pass_on

    def _reading(self, inner: Any) -> Callable[..., int]:
        return self._passing("read", inner)

    def _writing(self, inner: Any) -> Callable[..., int]:
        def write(file: int, data: int, amount: int, offset: int) -> int:
            fault = self._decide("write", self._names[file])
            if fault is None:
                return int(inner(file, data, amount, offset))
            if fault.torn:
                inner(file, data, amount // 2, offset)
            return fault.code

        return write

    def _syncing(self, inner: Any) -> Callable[..., int]:
        def sync(file: int, flags: int) -> int:
            fault = self._decide("sync", self._names[file])
            if fault is None:
                return int(inner(file, flags))
            if not fault.torn:
                inner(file, flags)  # it did arrive, but the disk says that it did not
            return fault.code

        return sync


_disk: Disk | None = None


@contextmanager
def faulty_disk() -> Iterator[Disk]:
    """Puts the disk under every connection that is opened inside.

    What was opened must be closed inside as well. There is one disk per process, and it is kept,
    because SQLite calls into it for as long as a connection is open.
    """
    global _disk
    if _disk is None:
        _disk = Disk()
    _disk.plan(None)
    _disk.insert()
    try:
        probe = sqlite3.connect(":memory:")
        probe.close()
        yield _disk
    finally:
        _disk.mend()
        _disk.remove()
