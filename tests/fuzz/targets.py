"""What a fuzzer calls: each target takes bytes, and returns or raises a `Finding` or worse.

A target hands the bytes to one entry point of the package, lets pass the errors that the entry
point documents, and checks what comes back. Anything else that escapes is a finding, so the
hypothesis tests beside this file and `atheris_run.py` need no opinion of their own.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pydantic import BaseModel

from surefoot.encryption import ThreadCiphers
from surefoot.errors import (
    DecisionRefused,
    KeyMissing,
    MarkCorrupt,
    Misconfigured,
    Misuse,
    NotLoadable,
    NotStorable,
)
from surefoot.flows.cover import Cover
from surefoot.highwater.driver import decode_mark
from surefoot.keys import Key, Keyring
from surefoot.langgraph.serde import StrictSerializer
from surefoot.ports import Mark
from surefoot.rules.bodies import (
    BODY_SCHEMAS,
    MAX_UNPACKED_BYTES,
    BodyError,
    CheckpointBody,
    Chunks,
    DecisionBody,
    EffectBody,
    EventBody,
    Inline,
    KeptFrame,
    KeyChangeBody,
    ProvenanceBody,
    PruneBody,
    RestoreBody,
    Row,
    Segment,
    TombstoneBody,
    Typed,
    WritesBody,
    pack_encrypted,
    pack_stored,
    unpack_encrypted,
    unpack_stored,
)
from surefoot.rules.decisions import SignedDecision
from surefoot.rules.envelope import (
    EnvelopeError,
    Identity,
    Link,
    Record,
    record_digest,
    seal_frame,
    verify_frame,
)
from surefoot.rules.envelope import _frame_mac as frame_mac
from surefoot.rules.intents import pack_intents, unpack_intents
from surefoot.signing import Reviewers, SigningKey

IDENTITY = Identity("tenant", "thread", 1)
KEY_ID = "k1"
SEAL_KEY = bytes(range(32))
BODY_READERS: Mapping[str, Callable[[int, bytes], Any]] = {
    "C": CheckpointBody.unpack,
    "W": WritesBody.unpack,
    "E": EffectBody.unpack,
    "P": PruneBody.unpack,
    "R": RestoreBody.unpack,
    "D": DecisionBody.unpack,
    "F": ProvenanceBody.unpack,
    "X": TombstoneBody.unpack,
    "K": KeyChangeBody.unpack,
    "V": EventBody.unpack,
}
#: A zstd block of 128 KiB takes at least 4 bytes.
_EXPANSION = 32_768
_MODE = 0o600


#: Takes fuzzed bytes; says whether the entry point accepted any of it.
Target = Callable[[bytes], bool]


class Finding(AssertionError):
    """An entry point did what it does not document."""


def require(holds: object, what: str) -> None:
    """Raises a finding where a check fails; `assert` would vanish under ``python -O``."""
    if not holds:
        raise Finding(what)


class Pieces:
    """Cuts fuzzed bytes into numbers and pieces; past the end everything is empty."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def take(self, size: int) -> bytes:
        piece = self._raw[self._at : self._at + size]
        self._at += size
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def sized(self) -> bytes:
        return self.take(self.number(2))

    def rest(self) -> bytes:
        return self._raw[self._at :]


# --- the envelope -----------------------------------------------------------------------------


def _seal_key_of(key_id: str) -> bytes:
    if key_id != KEY_ID:
        raise KeyMissing(key_id=key_id, reason="this ring does not hold it")
    return SEAL_KEY


def packed_frame(last_seq: int, epoch: int, head: bytes, body: bytes | None) -> bytes:
    """The input of `frame` that hands over these parts."""
    return b"".join(
        (
            bytes((body is not None,)),
            last_seq.to_bytes(8, "big"),
            epoch.to_bytes(8, "big"),
            len(head).to_bytes(2, "big"),
            head,
            body or b"",
        )
    )


def frame(data: bytes) -> bool:
    """A row of the journal as an attacker may write it."""
    return _verify(data, forge=False)


def forged_frame(data: bytes) -> bool:
    """A row whose seal fits whatever the head says: a key holder with other software."""
    return _verify(data, forge=True)


def _verify(data: bytes, *, forge: bool) -> bool:
    pieces = Pieces(data)
    with_body = bool(pieces.number(1) & 1)
    last_seq, epoch = pieces.number(8), pieces.number(8)
    head = pieces.sized()
    body = pieces.rest() if with_body else None
    if forge:
        head = _with_fitting_seal(last_seq, epoch, head)
    try:
        found = verify_frame(IDENTITY, last_seq, epoch, head, body, _seal_key_of)
    except (EnvelopeError, KeyMissing):
        return False
    records = found.records
    require(0 < len(records) <= last_seq, "a frame of no or of too many records")
    seqs = [record.link.seq for record in records]
    require(seqs == [*range(last_seq - len(records) + 1, last_seq + 1)], "seqs have gaps")
    if body is None:
        require(all(r.body is None for r in records), "a body that nobody has verified")
        return True
    require(b"".join(r.body or b"" for r in records) == body, "bodies that are not the row's")
    again = seal_frame(
        IDENTITY,
        epoch,
        Link(last_seq - len(records), records[0].prev),
        [Record(r.kind, r.schema, r.subject, r.body or b"") for r in records],
        key_id=found.key_id,
        seal_key=SEAL_KEY,
        early_floor=found.early_floor,
    )
    require(again.head == head, "two heads for the same records")
    return True


def _with_fitting_seal(last_seq: int, epoch: int, head: bytes) -> bytes:
    """The head with the seal that its own fields ask for, where it is long enough to have one."""
    pieces = Pieces(head)
    pieces.take(1)
    key_id = pieces.take(pieces.number(1)).decode("utf-8", "replace")
    prev, early_floor, count = pieces.take(32), pieces.number(8), pieces.number(2)
    seq = last_seq - count
    numbers_fit = 0 < epoch < 2**63 and 0 < count <= last_seq < 2**63
    if not numbers_fit or count * 54 > len(head):
        return head
    for _ in range(count):
        seq += 1
        record = (pieces.number(1), pieces.number(1), pieces.take(16))
        length, digest = pieces.number(4), pieces.take(32)
        prev = record_digest(IDENTITY, seq, epoch, record, prev, (digest, length), key_id)
    return head[:-32] + frame_mac(SEAL_KEY, prev, count, early_floor)


# --- bodies and stored forms --------------------------------------------------------------------


def _body_target(kind: str) -> Target:
    unpack, now = BODY_READERS[kind], BODY_SCHEMAS[kind]

    def target(data: bytes) -> bool:
        accepted = False
        schema = data[0] if data else 1
        for version, stored in ((now, data), (now, b"\0" + data), (schema, data[1:])):
            try:
                body = unpack(version, stored)
            except BodyError:
                continue
            accepted = True
            require(1 <= version <= now, "a schema of the future was read")
            check_types(body)
            if hasattr(body, "pack"):
                packed = body.pack()
                require(unpack(now, packed).pack() == packed, "a body changes when it is kept")
        return accepted

    return target


_INT, _TEXT, _RAW, _FLAG = int, str, bytes, bool
_SHAPES: Mapping[type, Mapping[str, Any]] = {
    Inline: {"stored": _RAW},
    Row: {"digest": _RAW, "size": _INT},
    Segment: {"log_id": _INT, "count": _INT, "items": _INT, "digest": _RAW},
    KeptFrame: {"last_seq": _INT, "epoch": _INT, "link_seq": _INT, "link_digest": _RAW},
    Typed: {"tag": _TEXT, "ref": (Inline, Row, Chunks)},
    RestoreBody: {"to_seq": _INT, "to_digest": _RAW, "horizon": _INT, "lost": _FLAG},
    DecisionBody: {"document": _RAW},
    TombstoneBody: {"reason": _TEXT},
    KeyChangeBody: {"key_id": _TEXT, "valid_up_to": _INT, "compromised": _FLAG},
    ProvenanceBody: {
        "source_thread": _TEXT,
        "source_incarnation": _INT,
        "source_seq": _INT,
        "source_digest": _RAW,
    },
    EventBody: {"kind": _TEXT, "payload": Typed, "at_us": _INT, "version": _INT},
}
_NAMED: Mapping[str, Any] = {
    **dict.fromkeys(("namespace", "checkpoint_id", "channel", "task_id", "task_path"), _TEXT),
    **dict.fromkeys(("name", "state", "receiver", "key", "position", "source", "reason"), _TEXT),
    **dict.fromkeys(("parent_id", "unstorable", "error", "risk"), (_TEXT, type(None))),
    "due_us": (_INT, type(None)),
    **dict.fromkeys(("step", "idx", "attempt", "at_us", "since_us", "asked_us"), _INT),
    **dict.fromkeys(("root", "task", "operation", "caller", "answer", "why"), _TEXT),
    **dict.fromkeys(("adopted", "compensates", "within"), _RAW),
    **dict.fromkeys(("branch", "slot", "fingerprint", "family"), _RAW),
    **dict.fromkeys(("born", "replaces", "cuts", "ended"), _FLAG),
    **dict.fromkeys(("skeleton", "metadata", "value"), Typed),
    **dict.fromkeys(
        ("arguments", "result", "receipt", "evidence", "conflict"), (Typed, type(None))
    ),
    **dict.fromkeys(("values", "batches", "writes", "kept", "segments"), tuple),
    **dict.fromkeys(("folds", "hidden"), tuple),
    "extra": dict,
}
_ITEMS = {"folds": bytes, "hidden": int}


def check_types(body: Any) -> None:
    """Every field of a body, and of what is in it, has the type that it is declared with."""
    shape = _SHAPES.get(type(body), _NAMED)
    for item in fields(body):
        value = getattr(body, item.name)
        wanted = shape[item.name]
        name = f"{type(body).__name__}.{item.name}"
        require(isinstance(value, wanted), f"{name} is a {type(value).__name__}")
        for part in value if isinstance(value, tuple) else (value,):
            if item.name in _ITEMS:
                require(isinstance(part, _ITEMS[item.name]), f"{name} holds {type(part).__name__}")
            elif is_dataclass(part):
                check_types(part)


def stored_form(data: bytes) -> bool:
    """A stored form as a key holder with other software may write it."""
    accepted = False
    for stored in (data, b"\x01" + data):
        try:
            raw = unpack_stored(stored)
        except BodyError:
            continue
        bound = min(MAX_UNPACKED_BYTES, _EXPANSION * len(stored))
        require(len(raw) <= max(bound, len(stored)), "a form unpacks beyond its bounds")
        require(unpack_stored(pack_stored(raw)) == raw, "a stored form changes when it is kept")
        accepted = True
    return accepted


_CIPHERS = ThreadCiphers(Keyring([Key(KEY_ID, SEAL_KEY, "primary")]))
_COVER = Cover(IDENTITY, _CIPHERS)


def encrypted_form(data: bytes) -> bool:
    """An encrypted form: its layout, whether it opens, and one that opens and holds rubbish."""
    accepted = False
    for stored in (data, b"\x02\x02k1" + data):
        try:
            parts = unpack_encrypted(stored)
        except BodyError:
            continue
        require(pack_encrypted(parts) == stored, "two encrypted forms with the same parts")
        with suppress(KeyMissing, BodyError):
            _COVER.open_value("msgpack", stored)
            accepted = True
    sealed = _COVER.cover_value("msgpack", data)
    try:
        plain = _COVER.open_value("msgpack", sealed)
    except BodyError:
        require(data[:1] == b"\x02", "only a form that is encrypted twice is refused")
    else:
        require(plain == data, "what was encrypted comes back")
    return accepted


def intents(data: bytes) -> bool:
    """The intents of a mark."""
    try:
        found = unpack_intents(data)
    except ValueError:
        require(len(data) % 40, "intents of a whole length are read")
        return False
    require(len(found) <= len(data) // 40, "more intents than there are entries")
    require(unpack_intents(pack_intents(found)) == found, "intents change when they are kept")
    return True


# --- the serialiser -----------------------------------------------------------------------------

_LISTED = SAFE_MSGPACK_TYPES | {("langgraph.store.base", "SearchItem")}
#: Spelled out here once more, so that a slip in the list of the package shows.
_OPEN_STDLIB = {
    *("calendar", "difflib", "http", "inspect", "logging", "platform", "shutil", "signal"),
    *("socket", "ssl", "sys", "tokenize", "urllib.parse", "uuid"),
}
_SCALARS = (type(None), bool, int, float, str, bytes, bytearray)
_FORBIDDEN_EVENTS = frozenset(
    {
        *("compile", "exec", "ctypes.dlopen", "pickle.find_class", "marshal.loads"),
        *("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen"),
        *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.chmod"),
        *("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request"),
    }
)
SERIALISERS = {
    "lax": StrictSerializer(),
    "strict": StrictSerializer(strict_types=True),
    "encrypted": StrictSerializer(secrets_encrypted=True),
}


class _Watch:
    """Notes what a load asks the interpreter for; an audit hook cannot be taken off again."""

    def __init__(self) -> None:
        self.active = False
        self.events: list[str] = []
        self.imports: list[str] = []
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: Sequence[object]) -> None:
        if self.active and event in _FORBIDDEN_EVENTS:
            self.events.append(event)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Refuses every import of a load, after noting it: a fuzzer loads no packages."""
        del path, target
        self.imports.append(name)
        raise ImportError(name)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Watches this process (one thread) while the block runs."""
        self.events, self.imports = [], []
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        self.active = True
        try:
            yield
        finally:
            self.active = False
            sys.meta_path.remove(self)  # type: ignore[arg-type]


_watch = _Watch()


def _preload() -> list[ModuleType]:
    """Imports the homes of the listed types, so that whatever a load imports is a surprise."""
    found = []
    for module, _ in sorted(_LISTED):
        with suppress(ImportError):
            found.append(importlib.import_module(module))
    return found


_PRELOADED = _preload()


def _load(name: str, data: bytes) -> Any:
    """Loads msgpack bytes; gives `NotLoadable` itself when they are refused."""
    with _watch.looking():
        try:
            value = SERIALISERS[name].loads_typed(("msgpack", data))
        except NotLoadable as error:
            value = error
    require(not _watch.events, f"a load did {_watch.events}")
    for module in _watch.imports:
        top = module.partition(".")[0]
        may = top not in sys.stdlib_module_names or module in _OPEN_STDLIB
        # A zone that the system does not have is looked for in the package of zones.
        known = top in {m.partition(".")[0] for m, _ in _LISTED} | {"tzdata"}
        require(known or (may and name != "strict"), f"a load asks for module {module!r}")
    return value


def check_built(value: Any, *, strict: bool) -> None:
    """Walks a loaded value: every object in it is of a type that may be built."""
    left = [value]
    while left:
        item = left.pop()
        cls = type(item)
        if isinstance(item, type) or (callable(item) and cls.__module__ == "builtins"):
            raise Finding(f"a load hands out {item!r}")
        if cls in _SCALARS:
            continue
        if cls in (list, tuple, set, frozenset):
            left += item
        elif cls is dict:
            left += [*item, *item.values()]
        elif cls is _DeltaSnapshot:
            left.append(item.value)
        elif cls is np.ndarray:
            require(not item.dtype.hasobject, "an array of objects")
        else:
            require(_may_be_built(cls, strict=strict), f"a load built a {cls.__module__}.{cls}")
            left += vars(item).values() if hasattr(item, "__dict__") else ()


def _may_be_built(cls: type, *, strict: bool) -> bool:
    names = {(cls.__module__, cls.__name__), (cls.__module__, cls.__qualname__)}
    if names & _LISTED or cls.__module__.partition(".")[0] in {"re", "pathlib", "zoneinfo"}:
        return True
    if cls.__module__.startswith(("ipaddress", "decimal", "langgraph.types")):
        return True
    top = cls.__module__.partition(".")[0]
    if strict or (top in sys.stdlib_module_names and cls.__module__ not in _OPEN_STDLIB):
        return False
    return (
        issubclass(cls, BaseModel | Enum)
        or is_dataclass(cls)
        or hasattr(cls, "_asdict")
        or hasattr(cls, "get_secret_value")
        or hasattr(cls, "__fields__")
    )


def loads(data: bytes) -> bool:
    """A serialised value under every setting; what one stores again, it loads again."""
    accepted = False
    for name in SERIALISERS:
        value = _load(name, data)
        if isinstance(value, NotLoadable):
            require(len(str(value)) < 2_000, "an error text without bound")
            continue
        check_built(value, strict=name == "strict")
        dumps(value, name)
        accepted = True
    return accepted


def tagged(data: bytes) -> bool:
    """A value under any type tag."""
    pieces = Pieces(data)
    tag, payload = pieces.sized().decode("latin-1"), pieces.rest()
    try:
        value = SERIALISERS["strict"].loads_typed((tag, payload))
    except NotLoadable:
        return False
    require(tag in {"null", "bytes", "bytearray", "msgpack"}, f"tag {tag!r} was loaded")
    require(tag != "bytes" or value == payload, "bytes came back changed")
    return True


def dumps(value: Any, name: str = "lax") -> None:
    """What is stored is loaded again as the same type, and lists in pieces are the same bytes."""
    serde = SERIALISERS[name]
    try:
        tag, raw = serde.dumps_typed(value)
    except NotStorable as error:
        require(error.path.startswith("$"), "a refusal without a path")
        return
    again = serde.loads_typed((tag, raw))
    if not isinstance(value, _LOOSE):
        require(type(again) is type(value), f"{type(value)} came back as {type(again)}")
    if type(value) is list:
        items = serde.list_items(value)
        if items is not None:
            require(serde.join_items(items, len(items)) == raw, "a list in pieces has other bytes")
            half = len(items) // 2
            parts = [b"".join(items[:half]), b"".join(items[half:])]
            require(serde.join_items(parts, len(items)) == raw, "pieces of pieces differ")


#: What LangGraph's format itself changes, see the docstring of the serialiser.
_LOOSE = (tuple, BaseException, str, int, list, dict, memoryview)


def joined(data: bytes) -> bool:
    """A list put together from pieces that hold anything."""
    pieces = Pieces(data)
    count, raw = pieces.number(5), pieces.rest()
    serde = SERIALISERS["strict"]
    try:
        whole = serde.join_items([raw], count)
    except ValueError:
        require(count >= 2**32, "a list of a possible length was refused")
        return False
    value = _load("strict", whole)
    if isinstance(value, NotLoadable):
        return False
    require(type(value) is list and len(value) == count, "a list of another length")
    return True


# --- decisions and keys -------------------------------------------------------------------------


def decision(data: bytes) -> bool:
    """A document of a decision, and its canonical form."""
    try:
        signed = SignedDecision.parse(data)
    except Misuse:
        return False
    kept = signed.render()
    again = SignedDecision.parse(kept)
    require(again == signed, "a decision changes when it is kept")
    require(again.render() == kept, "equal decisions have other bytes")
    require(SignedDecision.parse(kept.decode("ascii")) == signed, "text and bytes differ")
    return True


class _Scratch:
    """A file for documents that are read from files only; in memory where the system has that."""

    def __init__(self) -> None:
        memory = "/dev/shm"
        at = memory if Path(memory).is_dir() and os.access(memory, os.W_OK) else None
        self._folder = tempfile.TemporaryDirectory(prefix="surefoot-fuzz-", dir=at)
        self.path = Path(self._folder.name) / "document.json"

    def hold(self, data: bytes) -> Path:
        """The path of a file with these bytes that only its owner may read."""
        if not self.path.exists():
            self.path.touch(mode=_MODE)
        self.path.write_bytes(data)
        return self.path


_scratch = _Scratch()


def secrets_in(data: bytes) -> set[str]:
    """Every text of a document that stands where a secret belongs, or next to it."""
    try:
        left: list[Any] = [json.loads(data.decode("utf-8-sig"))]
    except (ValueError, RecursionError):
        return set()
    found: set[str] = set()
    while left:
        item = left.pop()
        if isinstance(item, dict):
            left += item.values()
            found |= {v for k, v in item.items() if k == "secret" and isinstance(v, str)}
        elif isinstance(item, list):
            left += item
    return {text for text in found if len(text) >= 12}


def _check_silent(error: BaseException, data: bytes) -> None:
    """No secret of the document is in the error, nor in what hangs on it."""
    shown = ""
    seen: BaseException | None = error
    while seen is not None:
        shown += f"{seen}{seen!r}{seen.args!r}{getattr(seen, 'fields', '')!r}"
        seen = seen.__cause__ or seen.__context__
    for secret in secrets_in(data):
        require(secret not in shown, "an error text holds a secret")


def keyring(data: bytes) -> bool:
    """A key file."""
    try:
        ring = Keyring.from_file(_scratch.hold(data))
    except (Misconfigured, KeyMissing) as error:
        _check_silent(error, data)
        return False
    require(ring.states()[ring.primary()] == "primary", "a ring without a primary")
    require(not any(s in repr(ring) for s in secrets_in(data)), "a repr holds a secret")
    require(len(ring.seal_key(ring.primary(), "t", "x")) == 32, "a ring that does not seal")
    copy = _scratch.path.with_name("copy.json")
    copy.unlink(missing_ok=True)
    ring.to_file(copy)
    require(Keyring.from_file(copy).states() == ring.states(), "a ring changes when it is kept")
    return True


def signing_key(data: bytes) -> bool:
    """A file with a private key of a person; what it signs is a document."""
    try:
        key = SigningKey.from_file(_scratch.hold(data))
    except (Misconfigured, KeyMissing) as error:
        _check_silent(error, data)
        return False
    require(not any(s in repr(key) for s in secrets_in(data)), "a repr holds a secret")
    signed = key.sign(DECISION)
    Reviewers({key.key_id: key.public()}).check(SignedDecision.parse(signed.render()))
    return True


def reviewers(data: bytes) -> bool:
    """A file with public keys."""
    try:
        known = Reviewers.from_file(_scratch.hold(data))
    except Misconfigured as error:
        _check_silent(error, data)
        return False
    try:
        known.check(SIGNED)
    except (KeyMissing, DecisionRefused):
        return True
    raise Finding("a signature of nobody was accepted")


DECISION_FIELDS: dict[str, Any] = {
    "version": 1,
    "action": "approve",
    "tenant": "tenant",
    "thread": "thread",
    "incarnation": 1,
    "head_seq": 7,
    "head_digest": "0a" * 32,
    "slot": "0b" * 32,
    "outcome": "succeeded",
    "result": {"charge": [1, 2.5, None, "x"]},
    "recorded_intent": "0c" * 32,
    "proposed_intent": "0d" * 32,
    "receipt_digest": "0e" * 32,
    "reason": "looked at the receiver",
    "nonce": "0f" * 16,
    "not_before": "2030-01-31T12:00:00Z",
    "expires": "2030-01-31T13:00:00Z",
}
_DOCUMENT = json.dumps(
    {"decision": DECISION_FIELDS, "key_id": "ops", "signature": "00" * 64}
).encode()
#: Signed by nobody.
SIGNED = SignedDecision.parse(_DOCUMENT)
DECISION = SIGNED.decision


# --- the mark -----------------------------------------------------------------------------------


def mark(data: bytes) -> bool:
    """A row of the high-water store, whatever types its columns have."""
    pieces = Pieces(data)
    row = tuple(_column(pieces) for _ in range(pieces.number(1) % 14))
    try:
        found = decode_mark(row, "thread")
    except MarkCorrupt:
        return False
    require(isinstance(found, Mark) and len(row) == 12, "a mark of another width")
    numbers = (found.incarnation, found.seq, found.epoch, found.lease_left_ms, found.step)
    for number in (*numbers, found.resumes):
        require(type(number) is int and abs(number) < 2**63, "a number out of range")
    require(found.incarnation >= 1 and found.epoch >= 1 and found.seq >= 0, "a mark below zero")
    require(len(found.digest) == 32 and (found.seq or not any(found.digest)), "a wrong digest")
    require(found.state in {"live", "tombstone", "frozen"}, "an unknown state")
    require(type(found.clean) is bool and type(found.tainted) is bool, "a flag that is none")
    require(isinstance(found.owner, str) and type(found.intents) is bytes, "a wrong type")
    return True


def _column(pieces: Pieces) -> Any:
    kind = pieces.number(1) % 9
    if kind == 0:
        return int.from_bytes(pieces.take(9), "big", signed=True)
    if kind == 1:
        return pieces.sized()
    if kind == 2:
        return pieces.take(32)
    if kind == 3:
        return (None, 1.5, [], {}, "live", b"live", "frozen", "tombstone")[pieces.number(1) % 8]
    if kind == 4:
        return bool(pieces.number(1) & 1)
    if kind == 5:
        return pieces.sized().decode("latin-1")
    return pieces.number(1)


def fitting_mark(owner: bytes, *, number: int) -> bytes:
    """An input of `mark` that is one: for mutations to start from."""
    small = bytes((6, number))
    sized = bytes((1,)) + len(owner).to_bytes(2, "big") + owner
    digest = bytes((2,)) + bytes(31) + bytes((number,))
    state = bytes((3, 4))
    flag = bytes((4, number))
    columns = (small, small, digest, small, sized, small, small, state, flag, flag, small)
    return bytes((12,)) + b"".join(columns) + bytes((1, 0, 0))


TARGETS: Mapping[str, Target] = {
    "frame": frame,
    "forged_frame": forged_frame,
    **{f"body_{kind}": _body_target(kind) for kind in BODY_READERS},
    "stored_form": stored_form,
    "encrypted_form": encrypted_form,
    "intents": intents,
    "loads": loads,
    "tagged": tagged,
    "joined": joined,
    "decision": decision,
    "keyring": keyring,
    "signing_key": signing_key,
    "reviewers": reviewers,
    "mark": mark,
}


# --- where mutations start ----------------------------------------------------------------------


def _typed(ref: Any) -> Typed:
    return Typed("msgpack", ref)


def seeds() -> dict[str, list[bytes]]:
    """Valid inputs by target: mutations of them get further in than random bytes do."""
    chunks = _typed(Chunks((Segment(9, 2, 70, bytes(32)),)))
    row, small = _typed(Row(bytes(32), 900)), _typed(Inline(b"\0\x01"))
    bodies = _body_seeds(chunks, row, small)
    stored = [
        pack_stored(b"x" * 999),
        pack_stored(b"short"),
        pack_stored(bytes(i * i % 251 for i in range(200))),
    ]
    sealed = seal_frame(
        IDENTITY,
        3,
        Link(4, bytes(32)),
        [Record(kind, 1, bytes(16), body) for kind, body in zip(_KINDS, bodies.values())],  # noqa: B905
        key_id=KEY_ID,
        seal_key=SEAL_KEY,
        early_floor=2,
    )
    framed = [
        packed_frame(sealed.last_seq, 3, sealed.head, body) for body in (None, sealed.body, b"")
    ]
    secret = "c2VjcmV0" * 6
    keys = {"keys": [{"id": "a", "secret": secret, "state": "primary"}, {"id": "b"}]}
    good = {"keys": keys["keys"][:1]}
    signer = {"signing_key": {"id": "ops", "secret": "0a" * 32}}
    return {
        "frame": framed,
        "forged_frame": framed,
        **{f"body_{kind}": [b"\x01" + body, body] for kind, body in bodies.items()},
        "stored_form": stored,
        "encrypted_form": [_COVER.cover_value("msgpack", s) for s in stored],
        "intents": [pack_intents({bytes(32): 1, bytes(31) + b"x": 2**40}), b""],
        "loads": serialised_seeds(),
        "tagged": [b"\0\x07msgpack" + raw for raw in serialised_seeds()[:4]],
        "joined": [b"\0\0\0\0\x02\x01\xa1x", b"\0\xff\xff\xff\xff\xc0"],
        "decision": [_DOCUMENT, SignedDecision.parse(_DOCUMENT).render()],
        "keyring": [json.dumps(good).encode(), json.dumps(keys).encode()],
        "signing_key": [json.dumps(signer).encode()],
        "reviewers": [json.dumps({"ops": "0a" * 32}).encode(), _DOCUMENT],
        "mark": [fitting_mark(b"host:1", number=n) for n in (0, 1)],
    }


_KINDS: Any = tuple(map(ord, "CWEPRDFXKV"))


def _body_seeds(chunks: Typed, row: Typed, small: Typed) -> dict[str, bytes]:
    from surefoot.rules.bodies import Batch, ChannelValue, Write

    values = tuple(ChannelValue(f"ch{i}", v) for i, v in enumerate((chunks, row, small)))
    checkpoint = CheckpointBody(
        "", "id-1", "id-0", 3, b"", False, row, small, values, (bytes(32),), {"of": 3}
    )
    writes = Batch("task", "~path", False, (Write(0, "ch", small), Write(-3, "__interrupt__", row)))
    effect = EffectBody(
        bytes(32), "charge", "started", 1, "K", bytes(32), "key", "", "id-1", "(root)", small
    )
    kept = (KeptFrame(9, 2, 8, bytes(32)), KeptFrame(5, 1, 5, bytes(32)))
    return {
        "C": checkpoint.pack(),
        "W": WritesBody("", "id-1", (writes,)).pack(),
        "E": effect.pack(),
        "P": PruneBody(kept, "prune", (3, 4), True).pack(),
        "R": RestoreBody(3, bytes(32), 7, True).pack(),
        "D": DecisionBody(b"{}").pack(),
        "F": ProvenanceBody("source", 1, 9, bytes(32)).pack(),
        "X": TombstoneBody("delete_thread").pack(),
        "K": KeyChangeBody("k1", 8, compromised=False).pack(),
        "V": EventBody("guardrail.tripped", small, 5, 2).pack(),
    }


def serialised_seeds() -> list[bytes]:
    """Serialised values that use every code of the format."""
    import datetime as dt
    import decimal
    import ipaddress
    import re
    import uuid
    from collections import deque
    from zoneinfo import ZoneInfo

    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.types import Interrupt, Send

    call = {"name": "pay", "args": {"amount": 1}, "id": "c1", "type": "tool_call"}
    berlin = dt.datetime(2030, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    values: list[Any] = [
        {"a": [1, 2.5, None, True, "x", b"y"], "b": {"c": []}},
        [HumanMessage("hi"), AIMessage("", tool_calls=[call]), ToolMessage("ok", tool_call_id="c")],
        [{1: "int", (1, "t"): "tuple"}, {"\ud800": 2**70}, "\udfff", {uuid.UUID(int=1): 1}],
        [{1, 2, "x"}, frozenset({(1, 2)}), deque([1], 3), deque([2])],
        [berlin, dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc), dt.date(2030, 1, 1)],
        [dt.timedelta(1, 2, 3), dt.time(1, 2), decimal.Decimal("1.5"), uuid.UUID(int=7)],
        [Path("a") / "b", re.compile("a+", re.IGNORECASE), ipaddress.ip_address("::1")],
        [Send("node", {"x": 1}), Interrupt("why?"), _DeltaSnapshot([1])],
        np.arange(6, dtype="<i4").reshape(2, 3),
        ValueError("an error becomes its repr"),
    ]
    return [SERIALISERS["lax"].dumps_typed(value)[1] for value in values]


__all__ = [
    "DECISION",
    "DECISION_FIELDS",
    "TARGETS",
    "Finding",
    "dumps",
    "require",
    "seeds",
]
