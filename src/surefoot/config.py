"""Settings. Every limit is a named field with its unit last; nothing here does I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from surefoot.errors import Misconfigured

__all__ = ["DEFAULT_CREDENTIAL_NAMES", "Limits", "ResumePolicy", "StoreUrl"]

#: Names (lower case, matched as whole words between separators) that look like credentials
#: and are left out of checkpoint metadata (case 51).
DEFAULT_CREDENTIAL_NAMES: tuple[str, ...] = (
    "api_key",
    "apikey",
    "access_key",
    "access_token",
    "auth",
    "authorization",
    "bearer",
    "client_secret",
    "cookie",
    "credential",
    "credentials",
    "jwt",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "private_key",
    "pwd",
    "refresh_token",
    "secret",
    "secret_key",
    "session_key",
    "signature",
    "token",
)


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    """What may be decided without asking an operator.

    Attributes:
        lease_ttl_ms: How long a worker owns a thread after its last publish, in milliseconds
            on the clock of the high-water store.
        wait_for_lease_ms: How long a run waits for a live worker's lease before it gives up
            with `Busy`. 0 means not at all.
        barrier_timeout_ms: How long an effect waits for its checkpoint to be published (E1).
        handover_grace_ms: How long a run always waits for a lease that is about to be given back
            (the last run of a chat turn ends on another thread than its caller).
        settling_ms: After a takeover, how long a lookup's "absent" does not count yet (E5).
        on_fork: What a call does that equals an effect of another branch (E4b): ``adopt`` what is
            recorded, ``execute`` it anew, or ``refuse``.
    """

    lease_ttl_ms: int = 60_000
    wait_for_lease_ms: int = 0
    barrier_timeout_ms: int = 30_000
    handover_grace_ms: int = 500
    settling_ms: int = 5_000
    on_fork: str = "adopt"

    def __post_init__(self) -> None:
        if self.on_fork not in ("adopt", "execute", "refuse"):
            raise Misconfigured(
                field="ResumePolicy.on_fork", reason="must be 'adopt', 'execute' or 'refuse'"
            )
        _check_numbers(self, at_least_0={"wait_for_lease_ms", "settling_ms", "handover_grace_ms"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of time and memory. Units are in the names.

    Attributes:
        inline_value_bytes: Values up to this size (stored form) travel inside the record;
            larger ones become content-addressed rows.
        list_chunk_min_items: Lists from this length on are stored as append-only chunks.
        list_segments_max: A list that has more segments than this is written anew.
        flush_after_ms: Pending writes wait at most this long for the next `put`.
        read_page_frames: Frames read per page when walking a journal.
        pool_max_connections: Upper bound of connections to the content store.
        offload_threads: Threads that serve the async methods.
        connect_timeout_ms: How long opening a connection may take.
        lock_timeout_ms: How long a migration waits for its lock before it fails.
        busy_timeout_ms: How long SQLite waits for another process's write lock.
        known_digests_max: Bound of the per-thread set of digests known to be stored.
        adoptable_effects_max: Most effects of other branches that a fork looks through (E4b).
    """

    inline_value_bytes: int = 512
    list_chunk_min_items: int = 8
    list_segments_max: int = 24
    flush_after_ms: int = 50
    read_page_frames: int = 64
    pool_max_connections: int = 16
    offload_threads: int = 16
    connect_timeout_ms: int = 10_000
    lock_timeout_ms: int = 10_000
    busy_timeout_ms: int = 30_000
    known_digests_max: int = 4_096
    adoptable_effects_max: int = 10_000

    def __post_init__(self) -> None:
        _check_numbers(self, at_least_0={"inline_value_bytes", "flush_after_ms"})


def _check_numbers(settings: ResumePolicy | Limits, *, at_least_0: set[str]) -> None:
    """Checks that every field is a whole number in its range."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(item.default, str):
            continue  # a choice, not a number
        least = 0 if item.name in at_least_0 else 1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise Misconfigured(
                field=f"{type(settings).__name__}.{item.name}",
                reason=f"must be a whole number from {least} to 2147483647",
            )


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed store address: ``sqlite:///path``, ``postgresql://…``.

    Attributes:
        scheme: ``sqlite`` or ``postgresql``.
        target: File path for SQLite, the whole conninfo for Postgres (never shown).
    """

    scheme: str
    target: str = field(repr=False)

    @classmethod
    def parse(cls, url: str, *, field_name: str) -> StoreUrl:
        """Parses and checks a store address.

        Args:
            url: The address as the user wrote it.
            field_name: Name of the parameter, for the message.

        Raises:
            Misconfigured: The scheme is unknown or the address has no target.
        """
        scheme = url.partition(":")[0].lower()
        scheme = "postgresql" if scheme == "postgres" else scheme
        if scheme == "sqlite":
            path = url.split(":", 1)[1]
            path = path.removeprefix("///")
            if not path or path.startswith("//") or path == ":memory:":
                raise Misconfigured(
                    field=field_name,
                    reason=(
                        "a SQLite address is sqlite:///relative.db or sqlite:////absolute.db; "
                        "in-memory databases cannot be resumed from"
                    ),
                )
            return cls(scheme, path)
        if scheme == "postgresql":
            return cls(scheme, url)
        # Only what stands before "://" is a scheme; anything else may be a secret and is not shown.
        named = f" {scheme!r}" if "://" in url and scheme.isalnum() else ""
        raise Misconfigured(
            field=field_name,
            reason=f"the scheme{named} is unknown; use sqlite:///… or postgresql://…",
        )
