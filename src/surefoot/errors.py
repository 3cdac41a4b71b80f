"""Errors, grouped by what the caller should do about them.

The reaction is the class, the reason is the stable ``code``, and the facts are fields:

======================  ==============================================================
class                   reaction
======================  ==============================================================
:class:`Refused`        stop; going on would be wrong; an operator or a decision is needed
:class:`Busy`           somebody else holds the thread; wait or try later
:class:`Unavailable`    a store did not answer; nothing was acknowledged; try again
:class:`Misuse`         the call or the value is wrong; change the program
======================  ==============================================================

Codes are append-only: a code never changes its meaning and is never used again. No error
carries a value of the user's state, a key, or a connection string with a password.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "BarrierTimeout",
    "Busy",
    "ChunkTaken",
    "Closed",
    "DecisionRefused",
    "EffectConflict",
    "EffectInDoubt",
    "EffectOnFork",
    "EffectResultLost",
    "Fenced",
    "KeyMissing",
    "MarkCorrupt",
    "MigrationRefused",
    "Misconfigured",
    "Misuse",
    "NotLoadable",
    "NotSetUp",
    "NotStorable",
    "OutcomeUnknown",
    "Refused",
    "ResumeRefused",
    "RollbackDetected",
    "SaveFailed",
    "StaleInput",
    "StoreUnavailable",
    "SurefootError",
    "TamperDetected",
    "TransactionEnded",
    "Unavailable",
    "UnknownEvent",
]


def _rebuild(cls: type[SurefootError], fields: dict[str, Any]) -> SurefootError:
    """Rebuilds a pickled error from its class and fields."""
    return cls(**fields)


class SurefootError(Exception):
    """Root of all errors of this package.

    Every concrete error takes keyword fields only, renders them through ``template`` and
    keeps them as attributes, so that handlers read fields and never parse messages.

    Attributes:
        code: Stable identifier, e.g. ``"ROLLBACK"``; docs/errors.md tells cause and remedy.
        reaction: One of ``refuse``, ``busy``, ``unavailable``, ``misuse``.
        fields: The facts of this occurrence by name.
    """

    code: ClassVar[str] = "SUREFOOT"
    reaction: ClassVar[str] = "refuse"
    template: ClassVar[str] = "{reason}"
    reason: str
    remedy: ClassVar[str] = ""

    def __init__(self, **fields: Any) -> None:
        self.fields: dict[str, Any] = fields
        for name, value in fields.items():
            setattr(self, name, value)
        super().__init__(self._render())

    def _render(self) -> str:
        shown = {k: ("-" if v is None else v) for k, v in self.fields.items()}
        text = self.template.format_map(_Shown(shown)).rstrip()
        if not text.endswith((".", "!", "?")):
            text += "."
        tail = f" {self.remedy.format_map(_Shown(shown))}" if self.remedy else ""
        return f"[{self.code}] {text}{tail}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.fields))


class _Shown(dict[str, Any]):
    """Renders a field that was not given as a dash instead of failing the error itself."""

    def __missing__(self, key: str) -> str:
        return "-"


# --- refuse ------------------------------------------------------------------------------------


class Refused(SurefootError):
    """Going on would be wrong. Nothing ran; a person or a signed decision is needed."""

    code = "REFUSED"
    reaction = "refuse"


class ResumeRefused(Refused):
    """The resume rules found reasons not to go on; ``findings`` lists every one (R1-R13)."""

    thread: str
    rules: list[str]

    code = "RESUME_REFUSED"
    template = "thread {thread!r} may not resume: {reason}"
    remedy = (
        "Nothing was run. If nobody has seen it: is highwater= the store that this database was "
        "used with? docs/rules.md has each rule, docs/guide.md “When a thread is refused”."
    )


class RollbackDetected(Refused):
    """The content store is behind the high-water mark (rule R3, step P2)."""

    thread: str
    witnessed_seq: int
    stored_seq: int

    code = "ROLLBACK"
    template = (
        "thread {thread!r}: the high-water mark is at seq {witnessed_seq}, but the database "
        "does not hold that record (it has {stored_seq}): {reason}"
    )
    remedy = (
        "The database was put back or lost acknowledged records. Do not delete the mark; "
        "restore the missing records or have an operator order a restore."
    )


class TamperDetected(Refused):
    """A seal, digest, link or identity does not verify (rules R4 and R6). Nothing was decoded."""

    thread: str
    what: str
    seq: int | None

    code = "TAMPER"
    template = "thread {thread!r}: {what} at seq {seq} does not verify: {reason}"
    remedy = "Nothing was decoded. Treat the database as changed by someone without the key."


class Fenced(Refused):
    """Another worker has acquired the thread; this one may not write or start effects."""

    thread: str
    epoch: int | None
    current_epoch: int | None

    code = "FENCED"
    template = "thread {thread!r}: epoch {epoch} was superseded by epoch {current_epoch}: {reason}"
    remedy = "Another worker owns the thread now; let it go on and drop this run."


class EffectConflict(Refused):
    """The same effect slot was reached with other arguments (rule E4)."""

    effect: str
    thread: str
    slot: str
    position: str
    key: str
    differs: list[str]
    recorded: str
    proposed: str

    code = "EFFECT_CONFLICT"
    template = (
        "effect {effect!r} of thread {thread!r} was recorded with other arguments at this place "
        "(slot {slot}): {reason}"
    )
    remedy = (
        "Nothing was sent; the recorded call stands. Leave out of inputs= what does not matter, or "
        "see docs/guide.md, “When a run stops in doubt”."
    )


class EffectInDoubt(Refused):
    """Nobody can prove whether the effect happened (rules E5, E8, R7)."""

    effect: str
    thread: str
    key: str
    slot: str
    state: str
    position: str

    code = "EFFECT_IN_DOUBT"
    template = (
        "effect {effect!r} of thread {thread!r} (key {key}, slot {slot}, {state}) may have "
        "happened: {reason}"
    )
    remedy = (
        "It was not repeated. Look at the receiver for this key, then see docs/guide.md, "
        "“When a run stops in doubt”."
    )


class EffectOnFork(Refused):
    """A fork came to a call that another branch has made, and ``on_fork`` says refuse (E4b)."""

    effect: str
    thread: str
    slot: str
    position: str

    code = "EFFECT_ON_FORK"
    template = "effect {effect!r} of thread {thread!r} at {position} (slot {slot}): {reason}"
    remedy = (
        "Nothing was sent. ResumePolicy(on_fork=...) says whether a fork takes over what another "
        "branch did (adopt) or does it anew (execute)."
    )


class EffectResultLost(Refused):
    """The effect is proven done, but its result could not be stored; it is never run again."""

    effect: str
    thread: str
    slot: str
    receipt: Any

    code = "EFFECT_RESULT_LOST"
    template = (
        "effect {effect!r} of thread {thread!r} (slot {slot}) succeeded earlier, but its result "
        "could not be stored ({reason}); receipt {receipt}"
    )
    remedy = "Return a storable result (plain data) from the effect, or give it reconcile=."


class StaleInput(Refused):
    """A stored result was produced from inputs that differ from those of now.

    ``differs`` names the paths that were added, removed or changed, never their values.
    """

    step: str
    thread: str
    slot: str
    position: str
    differs: list[str]
    recorded: str
    proposed: str

    code = "STALE_INPUT"
    template = (
        "step {step!r} of thread {thread!r} has a stored result that does not belong to what the "
        "run has now ({position}): {reason}"
    )
    remedy = "The stored result was not used, and nothing was sent. See docs/guide.md, “Reads”."


class NotLoadable(Refused):
    """A stored value names a type that cannot or may not be rebuilt (case 34)."""

    type_name: str

    code = "NOT_LOADABLE"
    template = "a stored value of type {type_name} cannot be loaded: {reason}"
    remedy = "Import or restore the type under this name, or list it in allowed_types=."


class KeyMissing(Refused):
    """A record is sealed or encrypted with a key that is absent or retired; ``key_id`` names it."""

    key_id: str | None

    code = "KEY_MISSING"
    template = "no usable key: {reason}"
    remedy = (
        "A sealing key belongs in SUREFOOT_KEYS (`surefoot init` makes a first one), the public "
        "key of a reviewer in SUREFOOT_REVIEWERS."
    )


class MarkCorrupt(Refused):
    """The high-water store answered with something that is no mark (step P0)."""

    code = "MARK_CORRUPT"
    template = "the high-water mark of thread {thread!r} cannot be trusted: {reason}"
    remedy = "No node was run. Restore the high-water store from its own backup or replica."


class DecisionRefused(Refused):
    """A signed decision does not hold here and now; nothing was carried out."""

    thread: str
    action: str
    nonce: str

    code = "DECISION_REFUSED"
    template = "decision {nonce} ({action}) of thread {thread!r} is not carried out: {reason}"
    remedy = "Look at the thread as it is now, then decide and sign anew (`surefoot review`)."


class UnknownEvent(Refused):
    """An event that this release does not know: what it changes would be left out of a fold."""

    kind: str
    schema: int | None
    seq: int | None

    code = "UNKNOWN_EVENT"
    template = "event {kind!r} (schema {schema}) at seq {seq}: {reason}"
    remedy = "A newer release wrote it; read the trail with that release."


class MigrationRefused(Refused):
    """The stored schema and the migrations of this release do not agree."""

    code = "MIGRATION_REFUSED"
    template = "schema of {where}: {reason}"


# --- busy --------------------------------------------------------------------------------------


class Busy(SurefootError):
    """Another live worker holds the thread, or a lock was not obtained in time (rule R12)."""

    what: str
    holder: str
    left_ms: int

    code = "BUSY"
    reaction = "busy"
    template = "{what} is held by {holder} for another {left_ms} ms"
    remedy = "Try again later, or wait: SurefootSaver(…, policy=ResumePolicy(wait_for_lease_ms=…))."


# --- unavailable -------------------------------------------------------------------------------


class Unavailable(SurefootError):
    """A store did not answer. Nothing was acknowledged; the same call may succeed later."""

    code = "UNAVAILABLE"
    reaction = "unavailable"
    template = "{store} is unavailable: {reason}"


class StoreUnavailable(Unavailable):
    """The content store or the high-water store could not be reached or gave an error."""

    code = "STORE_UNAVAILABLE"


class ChunkTaken(StoreUnavailable):
    """A list chunk with this number is stored already, by a worker that is fenced by now."""

    code = "CHUNK_TAKEN"


class OutcomeUnknown(Unavailable):
    """The request may or may not have been carried out; it was read back and not proven."""

    code = "OUTCOME_UNKNOWN"
    template = "outcome of {what} is unknown: {reason}"


class SaveFailed(Unavailable):
    """An earlier save of this run failed, so nothing further may be written or started (E10)."""

    code = "SAVE_FAILED"
    template = "thread {thread!r}: an earlier save failed ({reason}); this run is latched"
    remedy = "Start the run again: it resumes from the last published checkpoint."


class BarrierTimeout(Unavailable):
    """The checkpoint an effect runs under was not published within the deadline (rule E1)."""

    code = "BARRIER_TIMEOUT"
    template = (
        "effect {effect!r} of thread {thread!r} waited {waited_ms} ms for checkpoint "
        "{checkpoint_id} to be published"
    )
    remedy = "Nothing was sent. Check the stores' latency, or raise barrier_timeout_ms."


# --- misuse ------------------------------------------------------------------------------------


class Misuse(SurefootError):
    """The call, the configuration or the value is wrong; the program has to change."""

    code = "MISUSE"
    reaction = "misuse"
    template = "{field}: {reason}"


class Misconfigured(Misuse):
    """A setting is missing or contradictory; ``field`` names it."""

    code = "MISCONFIGURED"


class TransactionEnded(Misuse):
    """The body of an effect in the same database ended the transaction that it runs in."""

    code = "TRANSACTION_ENDED"
    template = (
        "the body ended the transaction that it shares with the ledger ({reason}); what it did "
        "before may be committed without a record"
    )
    remedy = "Leave COMMIT and ROLLBACK out of it; raise an exception to take everything back."


class NotSetUp(Misuse):
    """The tables of this release are not there."""

    code = "NOT_SET_UP"
    template = "{where} is not set up: {reason}"
    remedy = "Call saver.setup() once, or run `surefoot setup`, with a role that may create tables."


class NotStorable(Misuse):
    """A value cannot be stored faithfully; ``channel`` and ``path`` say where it is (case 33)."""

    channel: str | None
    path: str
    type_name: str

    code = "NOT_STORABLE"
    template = "channel {channel!r}, value at {path} of type {type_name}: {reason}"
    remedy = "Keep handles and secrets out of state; store plain data or an identifier instead."


class Closed(Misuse):
    """The saver was used after it was closed."""

    code = "CLOSED"
    template = "{field}: the saver is closed"
    remedy = "Open a new one with SurefootSaver.from_conn_string()."
