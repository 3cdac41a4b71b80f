"""Child process: hands hostile sizes to the targets and prints how much memory each one took.

One JSON line per case: name, outcome (``refused``, ``accepted`` or ``MemoryError``), size of the
input, and the peak of what Python allocated for it. What is allocated beside Python's allocator,
or is not bounded at all, meets the limit on the address space of this process.
"""

from __future__ import annotations

import json
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import ormsgpack
import zstandard
from tests.fuzz.targets import TARGETS, packed_frame

from surefoot.rules.bodies import MAX_UNPACKED_BYTES, unpack_stored

#: What a case may take beyond what this process has already.
_ROOM = 200 * 2**20
_MB = 2**20


def zeros(size: int, *, tell_size: bool = True) -> bytes:
    """A zstd frame of so many zeros, made without holding them."""
    packer = zstandard.ZstdCompressor(write_content_size=tell_size)
    stream = packer.compressobj(size=size if tell_size else -1)
    piece = bytes(_MB)
    parts = [stream.compress(piece) for _ in range(size // _MB)]
    return b"".join((*parts, stream.compress(bytes(size % _MB)), stream.flush()))


def claims(size: int) -> bytes:
    """A zstd frame of 16 bytes whose header claims a size."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"


def extension(code: int, payload: bytes) -> bytes:
    return ormsgpack.packb(ormsgpack.Ext(code, payload))


def nested_extensions(depth: int) -> bytes:
    raw = b"\xc0"
    for _ in range(depth):
        raw = extension(7, raw)
    return raw


def head(records: int) -> bytes:
    """A head that claims records and holds none."""
    return b"\x01\x02k1" + bytes(32) + bytes(8) + records.to_bytes(2, "big") + bytes(32)


def _array(size: int) -> bytes:
    return extension(6, ormsgpack.packb(["|u1", [4], "C", size]))


def _control(data: bytes) -> bool:
    """Takes what a bomb would take: shows that this scale works."""
    return len(data * MAX_UNPACKED_BYTES) > 0


def _half(data: bytes) -> bool:
    return len(unpack_stored(data)) == MAX_UNPACKED_BYTES // 4


def cases() -> dict[str, tuple[str, bytes]]:
    """Target and input by name."""
    deep, wide = b"\x91" * 1_000_000 + b"\xc0", b"\xdd\x00\xff\xff\xff" * 1_000
    return {
        "a bomb just over the limit": ("stored_form", b"\x01" + zeros(MAX_UNPACKED_BYTES + 1)),
        "a bomb of four gigabytes": ("stored_form", b"\x01" + zeros(4 * 2**30)),
        "a bomb without its size": ("stored_form", b"\x01" + zeros(2**30, tell_size=False)),
        "sixteen bytes that claim the limit": ("stored_form", claims(MAX_UNPACKED_BYTES)),
        "sixteen bytes that claim 2 GiB": ("stored_form", claims(2**31 - 1)),
        "a bomb as a body": ("body_C", b"\x01" + zeros(MAX_UNPACKED_BYTES + 1)),
        "a deep body": ("body_C", b"\0" + deep),
        "a wide body": ("body_W", b"\0" + wide),
        "a deep value": ("loads", deep),
        "a wide value": ("loads", wide),
        "a map that claims 4 billion keys": ("loads", b"\xdf\xff\xff\xff\xff"),
        "text that claims 4 GiB": ("loads", b"\xdb\xff\xff\xff\xff"),
        "deep extensions": ("loads", nested_extensions(2_000)),
        "an array that is a number of gigabytes": ("loads", _array(2**31)),
        "a list of 4 billion": ("joined", b"\0\xff\xff\xff\xff\xc0"),
        "a head of 65535 records": ("frame", packed_frame(2**40, 1, head(65_535), b"")),
        "a forged head of 65535 records": (
            "forged_frame",
            packed_frame(2**40, 1, head(65_535), b""),
        ),
        "a deep decision": ("decision", b"[" * 900_000),
        "a long decision": ("decision", b'"' + b"x" * 20_000_000 + b'"'),
        "a deep key file": ("keyring", b'{"keys":' + b"[" * 900_000),
        "a deep signing key": ("signing_key", b'{"signing_key":' + b"[" * 900_000),
        "deep reviewers": ("reviewers", b'{"a":' * 900_000),
        "an honest form of 64 MiB": ("half", b"\x01" + zeros(MAX_UNPACKED_BYTES // 4)),
        "the control": ("control", b"x"),
    }


def address_space() -> int:
    """Bytes of address space that this process has; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def main() -> None:
    """Weighs every case."""
    targets: dict[str, Callable[[bytes], bool]] = {**TARGETS, "control": _control, "half": _half}
    made = cases()
    used = address_space()
    if used:
        resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, used + _ROOM))
    tracemalloc.start()
    for name, (target, data) in made.items():
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            outcome = "accepted" if targets[target](data) else "refused"
        except MemoryError:
            outcome = "MemoryError"
        taken = tracemalloc.get_traced_memory()[1] - before
        print(json.dumps([name, outcome, len(data), taken]), flush=True)


if __name__ == "__main__":
    main()
