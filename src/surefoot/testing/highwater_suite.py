"""The conformance suite for high-water stores: what every store must do, said once.

For authors of their own store. A factory returns a new handle to **the same** store at each
call; the races start processes, so the factory must be picklable, for example
``functools.partial(MyHighWater, "my://address")``::

    report = run_highwater_conformance(partial(MyHighWater, "my://address"))
    print(report)
    report.raise_if_failed()

A script that does this needs the usual ``if __name__ == "__main__":``. Every check works in
tenants of its own, so the store need not be empty; it must be one for tests, though, because
marks are never deleted.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from surefoot.errors import Misuse, SurefootError
from surefoot.ports import Admission, HighWater, Lease, Mark, Publish

__all__ = [
    "CheckResult",
    "ConformanceFailure",
    "ConformanceReport",
    "HighWaterConformance",
    "HighWaterFactory",
    "run_highwater_conformance",
]

HighWaterFactory = Callable[[], HighWater]

ZERO = bytes(32)
LONG = Lease("holder", 60_000)
SHORT_MS = 150
THREADS = 8
PROCESSES = 4
WINS_PER_WORKER = 6
DEADLINE_S = 60.0
EXPIRY_S = 10.0
POLL_S = 0.005

#: 10 kB that no compression shortens.
_DENSE = "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(160))

#: Ids that stores get wrong: patterns, quotes, zero bytes, lone surrogates, length.
AWKWARD_IDS = (
    "",
    " ",
    "a",
    "A",
    "a ",
    "a%",
    "a_",
    "%",
    "_",
    "a'b",
    'a"b',
    "a\\b",
    "a;b--",
    "a\0b",
    "a\0",
    "\0",
    "a/b:c|d",
    "ä",
    "a\u0308",
    "\ud800",
    "x\udfffy",
    "\uffff",
    "\U0001f600",
    "k" * 10_240,
    "k" * 10_239 + "l",
    _DENSE,
    _DENSE + "+",
)


class ConformanceFailure(Exception):
    """A store does not do what the port says."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Outcome of one check; ``detail`` says what was wrong, or is empty."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """Outcomes of all checks, in their order."""

    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """True when there were checks and all have passed."""
        return bool(self.results) and all(result.passed for result in self.results)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that did not pass."""
        return tuple(result for result in self.results if not result.passed)

    def raise_if_failed(self) -> None:
        """Raises when a check failed or when there was none.

        Raises:
            ConformanceFailure: With the whole report.
        """
        if not self.passed:
            raise ConformanceFailure(str(self))

    def __str__(self) -> str:
        if not self.results:
            return "FAILED: no check was run"
        lines = [
            f"{'ok    ' if result.passed else 'FAILED'} {result.name}"
            + (f": {result.detail}" if result.detail else "")
            for result in self.results
        ]
        return "\n".join(lines)


def run_highwater_conformance(
    factory: HighWaterFactory, *, only: Collection[str] | None = None
) -> ConformanceReport:
    """Runs the suite on a store.

    Args:
        factory: Returns a new handle to the same store at each call; picklable.
        only: Names of checks to run; None means all. A name that is no check fails.

    Returns:
        The report; without any check it has not passed.
    """
    suite = HighWaterConformance(factory)
    names = suite.names() if only is None else list(only)
    return ConformanceReport(tuple(suite.run(name) for name in names))


def _expect(seen: object, wanted: object, what: str) -> None:
    if seen != wanted:
        raise ConformanceFailure(f"{what}: {_short(seen)} instead of {_short(wanted)}")


def _yes(answer: object, what: str) -> None:
    if not answer:
        raise ConformanceFailure(f"{what}: refused")


def _no(answer: object, what: str) -> None:
    if answer:
        raise ConformanceFailure(f"{what}: carried out")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}… ({len(text)} characters)"


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).digest()


def _got(mark: Mark | None, what: str) -> Mark:
    if mark is None:
        raise ConformanceFailure(f"{what}: None instead of a mark")
    return mark


def _newborn(*, incarnation: int, epoch: int, owner: str, step: int) -> Mark:
    """A mark at the start of a life, without its lease."""
    return Mark(
        incarnation=incarnation,
        seq=0,
        digest=ZERO,
        epoch=epoch,
        owner=owner,
        lease_left_ms=0,
        step=step,
        state="live",
        clean=False,
        tainted=False,
        resumes=0,
    )


def _still(mark: Mark | None) -> Mark | None:
    """The mark without what the clock changes, for comparisons."""
    return None if mark is None else replace(mark, lease_left_ms=0)


def _expect_lease(mark: Mark, ttl_ms: int, what: str) -> None:
    if not ttl_ms - 30_000 < mark.lease_left_ms <= ttl_ms:
        raise ConformanceFailure(f"{what}: {mark.lease_left_ms} ms left of {ttl_ms} ms")


def _next(mark: Mark, *label: object, **changes: Any) -> Publish:
    """A publish that fits the mark and raises it by one."""
    publish = Publish(
        epoch=mark.epoch,
        seq=mark.seq,
        digest=mark.digest,
        new_seq=mark.seq + 1,
        new_digest=_digest(mark.seq + 1, *label),
        step=mark.step,
        intents=mark.intents,
        ttl_ms=60_000,
    )
    return replace(publish, **changes)


def _release(mark: Mark, **changes: Any) -> Publish:
    """A publish that fits the mark, keeps its height and frees the lease."""
    unchanged: dict[str, Any] = {"new_seq": mark.seq, "new_digest": mark.digest, "ttl_ms": 0}
    return _next(mark, **{**unchanged, **changes})


class HighWaterConformance:
    """The checks: every method whose name starts with ``check_``.

    Args:
        factory: Returns a new handle to the same store at each call; picklable.
    """

    def __init__(self, factory: HighWaterFactory) -> None:
        self.factory = factory

    def names(self) -> list[str]:
        """The checks in the order in which they are written."""
        found: list[str] = []
        for kind in reversed(type(self).__mro__):
            found += [name for name in vars(kind) if name.startswith("check_")]
        return list(dict.fromkeys(name.removeprefix("check_") for name in found))

    def run(self, name: str) -> CheckResult:
        """Runs one check on a fresh handle; whatever it raises becomes its result."""
        check = getattr(self, f"check_{name}", None)
        if check is None:
            return CheckResult(name, passed=False, detail="there is no such check")
        store: HighWater | None = None
        try:
            store = self.factory()
            store.setup()
            check(store, f"{name}-{secrets.token_hex(8)}")
        except ConformanceFailure as failure:
            return CheckResult(name, passed=False, detail=str(failure))
        except Exception as exc:  # noqa: BLE001 - a store under test may raise anything
            detail = f"unexpected {type(exc).__name__}: {_short(str(exc))}"
            return CheckResult(name, passed=False, detail=detail)
        finally:
            if store is not None:
                store.close()
        return CheckResult(name, passed=True)

    # --- set-up ---------------------------------------------------------------------------------

    def check_setup_again(self, store: HighWater, tenant: str) -> None:
        """`setup` may be called again, changes nothing, and then verifies."""
        before = _still(store.create(tenant, "t", LONG))
        store.setup()
        store.setup(verify_only=True)
        _expect(_still(store.read(tenant, "t")), before, "the mark after a second setup")

    def check_durability_and_identity(self, store: HighWater, tenant: str) -> None:
        """The store declares itself durable, and says the same name of itself twice."""
        del tenant
        store.check_durability()
        other = self.factory()
        try:
            _expect(other.server_identity(), store.server_identity(), "identity by another handle")
        finally:
            other.close()
        if not store.server_identity() or not store.shown:
            raise ConformanceFailure("the store has no name to show")

    def check_writes_are_seen_elsewhere(self, store: HighWater, tenant: str) -> None:
        """What one handle wrote another one reads, also after the writer is closed."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        writer = self.factory()
        _yes(writer.publish(tenant, "t", _next(mark)), "publish by another handle")
        _expect(_got(store.read(tenant, "t"), "read").seq, 1, "seq read by the first handle")
        writer.close()
        reader = self.factory()
        try:
            _expect(_got(reader.read(tenant, "t"), "read").seq, 1, "seq after the writer closed")
        finally:
            reader.close()

    # --- create and acquire (P1) ----------------------------------------------------------------

    def check_unknown_thread(self, store: HighWater, tenant: str) -> None:
        """A thread never seen has no mark, and nothing but `create` makes one."""
        unknown = _next(_newborn(incarnation=1, epoch=1, owner="", step=0))
        _expect(store.read(tenant, "t"), None, "read")
        _expect(store.acquire(tenant, "t", LONG), None, "acquire")
        _expect(store.acquire(tenant, "t", LONG, over_epoch=0), None, "acquire over epoch 0")
        _no(store.publish(tenant, "t", unknown), "publish")
        _no(store.renew(tenant, "t", 1, 1_000), "renew")
        _expect(list(store.marks(tenant)), [], "marks")
        _expect(store.read(tenant, "t"), None, "read afterwards")

    def check_create(self, store: HighWater, tenant: str) -> None:
        """A new mark has epoch 1, nothing published and the lease; a second one is refused."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        wanted = _newborn(incarnation=1, epoch=1, owner=LONG.owner, step=mark.step)
        _expect(_still(mark), wanted, "the new mark")
        _expect_lease(mark, LONG.ttl_ms, "the lease of a new mark")
        _expect(_still(store.read(tenant, "t")), wanted, "the new mark, read back")
        _expect(store.create(tenant, "t", Lease("second", 1)), None, "a second create")
        again = _got(store.read(tenant, "t"), "read")
        _expect(_still(again), wanted, "the mark after a second create")
        _expect_lease(again, LONG.ttl_ms, "the lease after a second create")

    def check_admit(self, store: HighWater, tenant: str) -> None:
        """A lost mark is made anew as ordered: tainted, leased, in its life, above its epochs."""
        order = Admission(3, 7, _digest("head"), 12, 5, LONG)
        mark = _got(store.admit(tenant, "t", order), "admit")
        wanted = replace(
            _newborn(incarnation=3, epoch=12, owner=LONG.owner, step=5),
            seq=7,
            digest=_digest("head"),
            tainted=True,
        )
        _expect(_still(mark), wanted, "the admitted mark")
        _expect_lease(mark, LONG.ttl_ms, "the lease of an admitted mark")
        _expect(_still(store.read(tenant, "t")), wanted, "the admitted mark, read back")
        again = replace(order, incarnation=9, seq=99, epoch=99)
        _expect(store.admit(tenant, "t", again), None, "a second admission")
        _expect(store.create(tenant, "t", LONG), None, "a create after an admission")
        _expect(_still(store.read(tenant, "t")), wanted, "the mark after a second admission")
        _yes(store.publish(tenant, "t", _next(mark)), "publish on an admitted mark")
        frozen = _got(store.admit(tenant, "ice", replace(order, state="frozen")), "admit frozen")
        _expect(frozen.state, "frozen", "state of a mark that is admitted frozen")
        _expect(store.acquire(tenant, "ice", LONG, over_epoch=12), None, "acquire of a frozen mark")
        store.create(tenant, "other", LONG)
        before = _still(store.read(tenant, "other"))
        _expect(store.admit(tenant, "other", order), None, "an admission over a mark that is there")
        _expect(_still(store.read(tenant, "other")), before, "the mark that was there")

    def check_admit_refuses_what_no_mark_may_be(self, store: HighWater, tenant: str) -> None:
        """Numbers out of range and malformed digests are refused before anything is written."""
        order = Admission(1, 1, _digest("head"), 1, 0, LONG)
        wrong = [
            replace(order, incarnation=0),
            replace(order, seq=0),
            replace(order, epoch=0),
            replace(order, digest=b"short"),
            replace(order, lease=Lease("w", 0)),
            replace(order, state="tombstone"),
        ]
        for admission in wrong:
            try:
                store.admit(tenant, "t", admission)
            except Misuse:
                continue
            raise ConformanceFailure(f"admit took {admission}")
        _expect(store.read(tenant, "t"), None, "read afterwards")

    def check_lease_excludes(self, store: HighWater, tenant: str) -> None:
        """While the lease runs nobody acquires, and the attempt changes nothing."""
        before = _still(store.create(tenant, "t", LONG))
        _expect(store.acquire(tenant, "t", Lease("second", 60_000)), None, "acquire under a lease")
        _expect(_still(store.read(tenant, "t")), before, "the mark after a refused acquire")

    def check_lease_expires(self, store: HighWater, tenant: str) -> None:
        """The lease runs out on the store's clock: not earlier, and then it is free."""
        started = time.monotonic()
        _got(store.create(tenant, "t", Lease("first", SHORT_MS)), "create")
        mark = self._acquire_when_free(store, tenant, "t", Lease("second", 60_000))
        waited_ms = (time.monotonic() - started) * 1_000
        if waited_ms < SHORT_MS - 2:
            raise ConformanceFailure(f"acquired {waited_ms:.1f} ms into a lease of {SHORT_MS} ms")
        _expect((mark.epoch, mark.owner), (2, "second"), "epoch and owner")
        _expect_lease(mark, 60_000, "the second lease")

    def check_epochs_grow_by_one(self, store: HighWater, tenant: str) -> None:
        """Every acquisition raises the epoch by one and names its owner."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        for epoch in range(2, 8):
            _yes(store.publish(tenant, "t", _release(mark)), "release")
            mark = _got(store.acquire(tenant, "t", Lease(f"o{epoch}", 60_000)), "acquire")
            _expect((mark.epoch, mark.owner), (epoch, f"o{epoch}"), "epoch and owner")
            _expect(_still(store.read(tenant, "t")), _still(mark), "the mark, read back")

    def check_over_epoch(self, store: HighWater, tenant: str) -> None:
        """A dead holder's lease is taken over only at the epoch that was proven dead."""
        first = _got(store.create(tenant, "t", LONG), "create")
        for wrong in (0, 2, 3):
            _expect(
                store.acquire(tenant, "t", Lease("x", 1_000), over_epoch=wrong),
                None,
                f"acquire over epoch {wrong} of a mark at epoch 1",
            )
        second = _got(store.acquire(tenant, "t", LONG, over_epoch=1), "acquire over epoch 1")
        _expect(second.epoch, 2, "epoch after the take-over")
        _expect(store.acquire(tenant, "t", LONG, over_epoch=1), None, "a second take-over of 1")
        _no(store.publish(tenant, "t", _next(first)), "publish of the old holder")
        _no(store.renew(tenant, "t", 1, 60_000), "renew of the old holder")
        _expect(_still(store.read(tenant, "t")), _still(second), "the mark afterwards")
        _yes(store.publish(tenant, "t", _release(second)), "release")
        third = _got(store.acquire(tenant, "t", LONG, over_epoch=1), "acquire of a free mark")
        _expect(third.epoch, 3, "a free mark is free whatever over_epoch says; epoch")

    def check_renew(self, store: HighWater, tenant: str) -> None:
        """Only the holder's epoch renews; the lease then counts from now."""
        mark = _got(store.create(tenant, "t", Lease("first", 5_000)), "create")
        _no(store.renew(tenant, "t", 0, 60_000), "renew with an older epoch")
        _no(store.renew(tenant, "t", 2, 60_000), "renew with a newer epoch")
        _expect_lease(_got(store.read(tenant, "t"), "read"), 5_000, "the lease not renewed")
        _yes(store.renew(tenant, "t", 1, 100_000), "renew")
        after = _got(store.read(tenant, "t"), "read")
        _expect_lease(after, 100_000, "the renewed lease")
        _expect(_still(after), _still(mark), "the mark after a renewal")

    # --- publish (P4, P7) -----------------------------------------------------------------------

    def check_publish(self, store: HighWater, tenant: str) -> None:
        """A publish that fits writes every field it has and leaves the others alone."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        changes: dict[str, Any] = {"new_seq": 5, "step": 3, "intents": b"\0i", "ttl_ms": 90_000}
        publish = _next(mark, **changes)
        _yes(store.publish(tenant, "t", publish), "publish")
        after = _got(store.read(tenant, "t"), "read")
        wanted = replace(mark, seq=5, digest=publish.new_digest, step=3, intents=b"\0i")
        _expect(_still(after), _still(wanted), "the mark after a publish")
        _expect_lease(after, 90_000, "the lease after a publish")
        _no(store.publish(tenant, "t", publish), "the same publish again")

    def check_publish_compares(self, store: HighWater, tenant: str) -> None:
        """Another epoch, seq or digest, higher or lower: refused, and nothing has changed."""
        first = _got(store.create(tenant, "t", LONG), "create")
        _yes(store.publish(tenant, "t", _next(first)), "publish")
        _yes(store.publish(tenant, "t", _release(_got(store.read(tenant, "t"), "read"))), "release")
        mark = _got(store.acquire(tenant, "t", LONG), "acquire")
        stale = ({"epoch": 1}, {"epoch": 3}, {"seq": 0}, {"seq": 2}, {"digest": ZERO})
        for wrong in (*stale, {"digest": _digest("other")}, {"seq": 0, "digest": ZERO}):
            publish = _next(mark, new_seq=3, intents=b"x", clean=True, **wrong)
            _no(store.publish(tenant, "t", publish), f"publish with wrong {set(wrong)}")
            _expect(_still(store.read(tenant, "t")), _still(mark), "the mark after a refusal")

    def check_publish_frees(self, store: HighWater, tenant: str) -> None:
        """A ttl of 0 frees the lease at once, also at the same height."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        _yes(store.publish(tenant, "t", _release(mark)), "release")
        free = _got(store.read(tenant, "t"), "read")
        if free.lease_left_ms > 0:
            raise ConformanceFailure(f"{free.lease_left_ms} ms left after a release")
        _expect(_still(free), _still(mark), "the mark after a release at the same height")
        _got(store.acquire(tenant, "t", LONG), "acquire after a release")

    def check_publish_after_expiry(self, store: HighWater, tenant: str) -> None:
        """An expired lease that nobody took still publishes and renews: the epoch decides."""
        mark = _got(store.create(tenant, "t", Lease("first", 1)), "create")
        self._until(lambda: _got(store.read(tenant, "t"), "read").lease_left_ms <= 0, "expiry")
        _yes(store.publish(tenant, "t", _next(mark)), "publish after the expiry")
        _expect_lease(_got(store.read(tenant, "t"), "read"), 60_000, "the lease taken anew")
        _expect(store.acquire(tenant, "t", LONG), None, "acquire under the lease taken anew")

    def check_numbers(self, store: HighWater, tenant: str) -> None:
        """Numbers near 2**62 and steps below 0 come back as they were."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        high = _next(mark, new_seq=2**62, step=-1)
        _yes(store.publish(tenant, "t", high), "publish of a high seq")
        mark = _got(store.read(tenant, "t"), "read")
        _expect((mark.seq, mark.step), (2**62, -1), "seq and step")
        _yes(store.publish(tenant, "t", _next(mark, step=2**62)), "publish above it")
        mark = _got(store.read(tenant, "t"), "read")
        _expect((mark.seq, mark.step), (2**62 + 1, 2**62), "seq and step")
        _yes(store.publish(tenant, "t", _next(mark, step=-3)), "publish of a step below 0")
        _expect(_got(store.read(tenant, "t"), "read").step, -3, "step")

    def check_intents(self, store: HighWater, tenant: str) -> None:
        """Intents are bytes, kept exactly, replaced as a whole, from none to 64 kB."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        for size in (0, 1, 255, 256, 4_096, 65_536, 3, 0):
            intents = (bytes(range(256)) * 256)[:size]
            _yes(store.publish(tenant, "t", _next(mark, size, intents=intents)), "publish")
            mark = _got(store.read(tenant, "t"), "read")
            _expect(mark.intents, intents, f"intents of {size} bytes")
        _yes(store.publish(tenant, "t", _next(mark, intents=b"\xff\0'%s")), "publish")
        _yes(store.publish(tenant, "t", _release(_got(store.read(tenant, "t"), ""))), "release")
        mark = _got(store.acquire(tenant, "t", LONG), "acquire")
        _expect(mark.intents, b"\xff\0'%s", "intents after an acquisition")

    # --- clean, tainted, resumes (E3, R10) ------------------------------------------------------

    def check_taint(self, store: HighWater, tenant: str) -> None:
        """Who finds a mark not clean is tainted, until a step has been folded."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        _expect((mark.clean, mark.tainted, mark.resumes), (False, False, 0), "a new mark")
        for resumes in (1, 2, 3):
            mark = self._hand_over(store, tenant, _release(mark))
            _expect((mark.clean, mark.tainted, mark.resumes), (False, True, resumes), "taken over")
        _yes(store.publish(tenant, "t", _next(mark)), "publish, nothing folded")
        mark = _got(store.read(tenant, "t"), "read")
        _expect((mark.tainted, mark.resumes), (True, 3), "after a publish that folds nothing")
        mark = self._hand_over(store, tenant, _release(mark, clean=True))
        _expect((mark.tainted, mark.resumes), (True, 3), "a clean release does not end a taint")
        _yes(store.publish(tenant, "t", _next(mark, folded=True)), "publish, folded")
        mark = _got(store.read(tenant, "t"), "read")
        _expect((mark.clean, mark.tainted, mark.resumes), (False, False, 0), "after a fold")

    def check_clean(self, store: HighWater, tenant: str) -> None:
        """A clean release leaves no taint; acquiring and publishing clear `clean`."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        _yes(store.publish(tenant, "t", _next(mark, clean=True, ttl_ms=0)), "release")
        mark = _got(store.read(tenant, "t"), "read")
        _expect((mark.clean, mark.tainted, mark.resumes), (True, False, 0), "released clean")
        mark = _got(store.acquire(tenant, "t", LONG), "acquire")
        _expect((mark.clean, mark.tainted, mark.resumes), (False, False, 0), "acquired clean")
        mark = self._hand_over(store, tenant, _release(mark))
        _expect((mark.tainted, mark.resumes), (True, 1), "acquired again, not released clean")
        _yes(store.publish(tenant, "t", _next(mark, clean=True, folded=True)), "publish")
        mark = _got(store.read(tenant, "t"), "read")
        _expect((mark.clean, mark.tainted, mark.resumes), (True, False, 0), "clean and folded")
        _yes(store.publish(tenant, "t", _next(mark)), "publish after a clean one")
        _no(_got(store.read(tenant, "t"), "read").clean, "clean after that")

    # --- states ---------------------------------------------------------------------------------

    def check_tombstone(self, store: HighWater, tenant: str) -> None:
        """A tombstone is kept, and born again by an acquisition, above every old epoch."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        mark = self._hand_over(store, tenant, _next(mark, step=7, intents=b"open", ttl_ms=0))
        _yes(store.publish(tenant, "t", _next(mark, state="tombstone")), "tombstone")
        dead = _got(store.read(tenant, "t"), "read")
        _expect((dead.state, dead.seq, dead.incarnation), ("tombstone", 2, 1), "the tombstone")
        _expect(store.create(tenant, "t", LONG), None, "create over a tombstone")
        _expect(store.acquire(tenant, "t", LONG), None, "acquire of a leased tombstone")
        release = _release(dead, state="tombstone", clean=True)
        _yes(store.publish(tenant, "t", release), "release of a tombstone")
        born = _got(store.acquire(tenant, "t", Lease("heir", 60_000)), "acquire of a tombstone")
        wanted = _newborn(incarnation=2, epoch=dead.epoch + 1, owner="heir", step=born.step)
        _expect(_still(born), wanted, "the mark born again")
        _no(store.publish(tenant, "t", _next(dead)), "publish from the former life")
        _no(store.renew(tenant, "t", dead.epoch, 1_000), "renew from the former life")
        _yes(store.publish(tenant, "t", _next(born)), "publish in the new life")
        _expect([m.incarnation for _, m in store.marks(tenant)], [2], "incarnations listed")

    def check_tombstone_takeover(self, store: HighWater, tenant: str) -> None:
        """A leased tombstone whose holder is proven dead is born again as well."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        _yes(store.publish(tenant, "t", _next(mark, state="tombstone")), "tombstone")
        born = _got(store.acquire(tenant, "t", LONG, over_epoch=1), "acquire over epoch 1")
        seen = (born.incarnation, born.epoch, born.seq, born.tainted, born.resumes, born.state)
        _expect(seen, (2, 2, 0, False, 0, "live"), "the mark born again")

    def check_frozen(self, store: HighWater, tenant: str) -> None:
        """A frozen mark is never acquired; who knows its head can thaw it."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        _yes(store.publish(tenant, "t", _next(mark, state="frozen", ttl_ms=0)), "freeze")
        frozen = _got(store.read(tenant, "t"), "read")
        _expect(frozen.state, "frozen", "state")
        _expect(store.acquire(tenant, "t", LONG), None, "acquire of a free frozen mark")
        _expect(store.acquire(tenant, "t", LONG, over_epoch=1), None, "the same over its epoch")
        _expect(_still(store.read(tenant, "t")), _still(frozen), "the frozen mark afterwards")
        _yes(store.publish(tenant, "t", _release(frozen)), "thaw")
        _expect(_got(store.acquire(tenant, "t", LONG), "acquire, thawed").epoch, 2, "epoch")

    # --- names ----------------------------------------------------------------------------------

    def check_ids(self, store: HighWater, tenant: str) -> None:
        """Any text is an id, and no two texts are the same one."""
        marks: list[Mark] = []
        for number, thread in enumerate(AWKWARD_IDS, start=1):
            lease = Lease(f"{thread}{number}", 60_000)
            marks.append(_got(store.create(tenant, thread, lease), f"create {thread!r:.40}"))
            _expect(marks[-1].owner, lease.owner, "owner")
        for number, thread in enumerate(AWKWARD_IDS, start=1):
            publish = _next(marks[number - 1], new_seq=number)
            _yes(store.publish(tenant, thread, publish), f"publish {thread!r:.40}")
        for number, thread in enumerate(AWKWARD_IDS, start=1):
            mark = _got(store.read(tenant, thread), f"read {thread!r:.40}")
            _expect((mark.seq, mark.owner), (number, f"{thread}{number}"), f"mark {thread!r:.40}")
        listed = [thread for thread, _ in store.marks(tenant)]
        _expect(listed, sorted(AWKWARD_IDS), "ids listed")

    def check_tenants(self, store: HighWater, tenant: str) -> None:
        """Tenants share nothing, whatever their names contain."""
        tenants = [f"{tenant}{name}" for name in AWKWARD_IDS]
        marks = [_got(store.create(name, "t", LONG), "create in each tenant") for name in tenants]
        for number, name in enumerate(tenants, start=1):
            publish = _next(marks[number - 1], new_seq=number)
            _yes(store.publish(name, "t", publish), f"publish in tenant {number}")
        for number, name in enumerate(tenants, start=1):
            listed = [(thread, mark.seq) for thread, mark in store.marks(name)]
            _expect(listed, [("t", number)], f"marks of tenant {number}")
        _got(store.create(f"{tenant}ab", "c", LONG), "create (ab, c)")
        _expect(store.read(f"{tenant}a", "bc"), None, "read (a, bc) after (ab, c)")
        _no(store.renew(f"{tenant}a", "c", 1, 1_000), "renew in another tenant")

    def check_pages(self, store: HighWater, tenant: str) -> None:
        """Listings are ordered by id and page without gaps or repeats."""
        prefix = "p" * 1_000
        ids = [f"{n}" for n in range(25)] + [f"{prefix}{n}" for n in range(5)] + ["", "\0", "1\0"]
        for thread in ids:
            _got(store.create(tenant, thread, LONG), "create")
        for limit in (1, 7, 100):
            seen: list[str] = []
            after: str | None = None
            while page := list(store.marks(tenant, after_thread=after, limit=limit)):
                if len(page) > limit:
                    raise ConformanceFailure(f"{len(page)} marks in a page of {limit}")
                seen += [thread for thread, _ in page]
                after = seen[-1]
                if len(seen) > len(ids):
                    break
            _expect(seen, sorted(ids), f"ids in pages of {limit}")
        _expect(list(store.marks(tenant, after_thread="zz")), [], "marks after the last one")
        thread, mark = next(iter(store.marks(tenant, after_thread="23")))
        _expect(_still(mark), _still(store.read(tenant, thread)), "a mark listed and read")

    def check_intents_listed(self, store: HighWater, tenant: str) -> None:
        """Marks with intents are listed alone, in order and in pages, as they stand now."""
        _expect(list(store.marks_with_intents(tenant)), [], "marks with intents of nobody")
        ids = [f"{n:02}" for n in range(20)]
        marks = {}
        for number, thread in enumerate(ids):
            mark = _got(store.create(tenant, thread, LONG), "create")
            intents = b"i" * 40 if number % 3 == 0 else b""
            publish = replace(_next(mark, new_seq=1), intents=intents)
            _yes(store.publish(tenant, thread, publish), "publish")
            marks[thread] = publish
        wanted = ids[::3]
        for limit in (1, 3, 100):
            seen: list[str] = []
            after: str | None = None
            while page := list(store.marks_with_intents(tenant, after_thread=after, limit=limit)):
                if len(page) > limit:
                    raise ConformanceFailure(f"{len(page)} marks in a page of {limit}")
                seen += [thread for thread, _ in page]
                after = seen[-1]
                if len(seen) > len(ids):
                    break
            _expect(seen, wanted, f"marks with intents in pages of {limit}")
        thread, mark = next(iter(store.marks_with_intents(tenant)))
        _expect(_still(mark), _still(store.read(tenant, thread)), "a mark listed and read")
        gone = replace(
            marks[thread], seq=1, digest=marks[thread].new_digest, new_seq=1, intents=b""
        )
        _yes(store.publish(tenant, thread, gone), "publish without intents")
        listed = [thread for thread, _ in store.marks_with_intents(tenant)]
        _expect(listed, wanted[1:], "marks with intents after one has lost them")

    # --- races ----------------------------------------------------------------------------------

    def check_race_create(self, store: HighWater, tenant: str) -> None:
        """Of many who create a mark at once, one does."""
        for number in range(5):
            barrier = threading.Barrier(THREADS)

            def create(worker: int, barrier: threading.Barrier = barrier, n: int = number) -> bool:
                barrier.wait(DEADLINE_S)
                return store.create(tenant, f"t{n}", Lease(f"w{worker}", 60_000)) is not None

            with ThreadPoolExecutor(THREADS) as pool:
                wins = list(pool.map(create, range(THREADS)))
            _expect(wins.count(True), 1, "creators of one mark")
            winner = f"w{wins.index(True)}"
            _expect(_got(store.read(tenant, f"t{number}"), "read").owner, winner, "owner")

    def check_race_takeover(self, store: HighWater, tenant: str) -> None:
        """Of many who take over the same dead holder at once, one does."""
        _got(store.create(tenant, "t", LONG), "create")
        for epoch in range(1, 6):
            barrier = threading.Barrier(THREADS)

            def take(worker: int, barrier: threading.Barrier = barrier, over: int = epoch) -> bool:
                barrier.wait(DEADLINE_S)
                lease = Lease(f"w{worker}", 60_000)
                return store.acquire(tenant, "t", lease, over_epoch=over) is not None

            with ThreadPoolExecutor(THREADS) as pool:
                wins = list(pool.map(take, range(THREADS)))
            _expect(wins.count(True), 1, f"take-overs of epoch {epoch}")
            mark = _got(store.read(tenant, "t"), "read")
            _expect((mark.epoch, mark.owner), (epoch + 1, f"w{wins.index(True)}"), "the winner")

    def check_race_acquire_threads(self, store: HighWater, tenant: str) -> None:
        """Eight threads of one process: every epoch has one winner, and none is skipped."""
        self._race_acquire(store, tenant, self._in_threads)

    def check_race_acquire_processes(self, store: HighWater, tenant: str) -> None:
        """Four processes: every epoch has one winner, and none is skipped."""
        self._race_acquire(store, tenant, self._in_processes)

    def check_race_publish_threads(self, store: HighWater, tenant: str) -> None:
        """Eight threads of one process: every seq has one winner, and no update is lost."""
        self._race_publish(store, tenant, self._in_threads)

    def check_race_publish_processes(self, store: HighWater, tenant: str) -> None:
        """Four processes: every seq has one winner, and no update is lost."""
        self._race_publish(store, tenant, self._in_processes)

    def check_reads_are_linear(self, store: HighWater, tenant: str) -> None:
        """A read begun after a publish has returned shows it, whoever reads."""
        mark = _got(store.create(tenant, "t", LONG), "create")
        acknowledged = [0]
        done = threading.Event()

        def follow(_: int) -> str:
            reader = self.factory()
            try:
                while not done.is_set():
                    floor = acknowledged[0]
                    seq = _got(reader.read(tenant, "t"), "read").seq
                    if seq < floor:
                        return f"read seq {seq} after seq {floor} was acknowledged"
            finally:
                reader.close()
            return ""

        with ThreadPoolExecutor(THREADS) as pool:
            readers = [pool.submit(follow, number) for number in range(THREADS)]
            try:
                for _ in range(40):
                    publish = _next(mark)
                    _yes(store.publish(tenant, "t", publish), "publish")
                    acknowledged[0] = publish.new_seq
                    mark = replace(mark, seq=publish.new_seq, digest=publish.new_digest)
            finally:
                done.set()
            for reader in readers:
                if complaint := reader.result(DEADLINE_S):
                    raise ConformanceFailure(complaint)

    def _race_acquire(self, store: HighWater, tenant: str, start: _Start) -> None:
        mark = _got(store.create(tenant, "t", LONG), "create")
        _yes(store.publish(tenant, "t", _release(mark)), "release")
        won = sorted(epoch for wins in start(_acquire_worker, tenant) for epoch, _ in wins)
        _expect(won, list(range(2, len(won) + 2)), "epochs won")
        final = _got(store.read(tenant, "t"), "read")
        _expect(final.epoch, len(won) + 1, "the last epoch")
        _expect(final.seq, len(won), "publishes of the winners")

    def _race_publish(self, store: HighWater, tenant: str, start: _Start) -> None:
        _got(store.create(tenant, "t", LONG), "create")
        won = sorted(win for wins in start(_publish_worker, tenant) for win in wins)
        _expect([seq for seq, _ in won], list(range(1, len(won) + 1)), "seqs won")
        final = _got(store.read(tenant, "t"), "read")
        _expect((final.seq, final.digest), won[-1], "the last seq and digest")

    def _in_threads(self, worker: _Worker, tenant: str) -> list[list[_Win]]:
        """Runs a worker in eight threads, which share four handles."""
        barrier = threading.Barrier(THREADS)
        stores = [self.factory() for _ in range(THREADS // 2)]

        def run(number: int) -> list[_Win]:
            barrier.wait(DEADLINE_S)
            return worker(stores[number // 2], tenant, f"w{number}")

        try:
            with ThreadPoolExecutor(THREADS) as pool:
                return list(pool.map(run, range(THREADS)))
        finally:
            for store in stores:
                store.close()

    def _in_processes(self, worker: _Worker, tenant: str) -> list[list[_Win]]:
        """Runs a worker in four processes, which wait for each other before they start."""
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(PROCESSES)]
        children = []
        try:
            for number, (_, theirs) in enumerate(pipes):
                arguments = (theirs, self.factory, worker, tenant, f"p{number}")
                child = context.Process(target=_child, args=arguments, daemon=True)
                try:
                    child.start()
                except (AttributeError, TypeError) as exc:
                    raise ConformanceFailure(f"the factory must be picklable: {exc}") from None
                children.append(child)
                theirs.close()
            for ours, _ in pipes:
                _expect(_receive(ours), "ready", "a process before the race")
            for ours, _ in pipes:
                ours.send("go")
            return [_receive(ours) for ours, _ in pipes]
        finally:
            for child in children:
                child.join(5)
                if child.is_alive():
                    child.kill()
                    child.join()
            for ours, _ in pipes:
                ours.close()

    # --- small steps ----------------------------------------------------------------------------

    def _hand_over(self, store: HighWater, tenant: str, release: Publish) -> Mark:
        _yes(store.publish(tenant, "t", release), "release")
        return _got(store.acquire(tenant, "t", LONG), "acquire after a release")

    def _acquire_when_free(self, store: HighWater, tenant: str, thread: str, lease: Lease) -> Mark:
        found: list[Mark] = []

        def attempt() -> bool:
            mark = store.acquire(tenant, thread, lease)
            if mark is not None:
                found.append(mark)
            return mark is not None

        self._until(attempt, "an expired lease to be free")
        return found[0]

    def _until(self, happened: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + EXPIRY_S
        while not happened():
            if time.monotonic() > deadline:
                raise ConformanceFailure(f"waited {EXPIRY_S:.0f} s for {what}")
            time.sleep(POLL_S)


_Win = tuple[int, bytes]
_Worker = Callable[[HighWater, str, str], list[_Win]]
_Start = Callable[[_Worker, str], Sequence[Sequence[_Win]]]


def _receive(pipe: Connection) -> Any:
    """What a process says next; its failure becomes ours."""
    if not pipe.poll(DEADLINE_S):
        raise ConformanceFailure(f"a process said nothing for {DEADLINE_S:.0f} s")
    try:
        message = pipe.recv()
    except EOFError:
        raise ConformanceFailure("a process of the race died") from None
    if isinstance(message, str) and message.startswith("failed: "):
        raise ConformanceFailure(f"a process of the race {message}")
    return message


def _child(
    pipe: Connection, factory: HighWaterFactory, worker: _Worker, tenant: str, name: str
) -> None:
    """Body of a process of a race: open, say so, wait for the start, run, tell the wins."""
    try:
        store = factory()
        store.read(tenant, "t")
        pipe.send("ready")
        pipe.recv()
        pipe.send(worker(store, tenant, name))
        store.close()
    except (ConformanceFailure, SurefootError, OSError, RuntimeError, ValueError) as exc:
        pipe.send(f"failed: {type(exc).__name__}: {_short(str(exc))}")


def _acquire_worker(store: HighWater, tenant: str, name: str) -> list[_Win]:
    """Acquires, publishes and releases until it has won often enough."""
    wins: list[_Win] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(wins) < WINS_PER_WORKER:
        if time.monotonic() > deadline:
            raise ConformanceFailure(f"{name} won {len(wins)} epochs in {DEADLINE_S:.0f} s")
        mark = store.acquire(tenant, "t", Lease(name, 60_000))
        if mark is None:
            time.sleep(0)
            continue
        wins.append((mark.epoch, b""))
        if not store.publish(tenant, "t", _next(mark, name, ttl_ms=0)):
            raise ConformanceFailure(f"{name} could not publish in epoch {mark.epoch} of its own")
    return wins


def _publish_worker(store: HighWater, tenant: str, name: str) -> list[_Win]:
    """Reads and publishes the next seq in the shared epoch until it has won often enough."""
    wins: list[_Win] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(wins) < WINS_PER_WORKER:
        if time.monotonic() > deadline:
            raise ConformanceFailure(f"{name} won {len(wins)} seqs in {DEADLINE_S:.0f} s")
        publish = _next(_got(store.read(tenant, "t"), "read"), name, secrets.token_hex(8))
        if store.publish(tenant, "t", publish):
            wins.append((publish.new_seq, publish.new_digest))
    return wins
