"""What is explored: configurations that must hold, and mistakes that must be caught."""

from __future__ import annotations

from typing import NamedTuple

from tests.model.state import Config

N, L, K = ("N",), ("L",), ("K",)

#: Every kind of action. One that never fires in the quick configurations fails the tests.
ACTIONS = frozenset(
    {
        "B lost",
        "absent",
        "absent once",
        "acquire",
        "adopt",
        "alarm: R2",
        "alarm: R3",
        "alarm: R4",
        "alarm: R6",
        "alarm: gate",
        "alarm: no mark",
        "append C",
        "append E",
        "append P",
        "append R",
        "append W",
        "call",
        "choose",
        "collect",
        "crash",
        "create",
        "does not fit",
        "dropped",
        "edit: any subset",
        "edit: any subset, head row kept",
        "edit: everything ever stored",
        "edit: head row changed",
        "edit: head row deleted",
        "edit: newest deleted",
        "edit: newest deleted, head row kept",
        "edit: older state put back",
        "edit: oldest deleted",
        "edit: one deleted",
        "edit: one epoch only",
        "edit: rows beyond the head deleted",
        "failover",
        "fenced",
        "finish",
        "found",
        "gate closed",
        "gate: committed",
        "give up",
        "go on",
        "landed",
        "later epoch",
        "lease runs out",
        "load",
        "look for the parent",
        "misuse",
        "node",
        "not published",
        "nothing stored",
        "order",
        "proven failure",
        "publish again",
        "publish: give back",
        "publish: intent",
        "publish: prune",
        "publish: put",
        "publish: refuse",
        "publish: release",
        "publish: restore",
        "put",
        "re-base",
        "read back: committed",
        "read head row",
        "reader: B",
        "reader: again",
        "reader: alarm",
        "reader: in doubt",
        "reader: serve",
        "refuse",
        "renew",
        "replay",
        "reply",
        "reply of A lost",
        "reply of B lost",
        "request to A lost",
        "request to B lost",
        "resend",
        "send K",
        "send L",
        "send N",
        "take over",
        "time-out",
    }
)

#: Explored by `make test`.
QUICK: tuple[Config, ...] = (
    Config("honest N, looked at", program=(N,), crashes=2, reader=True),
    Config("honest L then N", program=(L, N)),
    Config("honest K twice in a step", program=(("K", "K"),)),
    Config("weak lookup", program=(L,), crashes=2, strong=False, timeouts=1),
    Config("failures and time-outs", program=(L,), failures=1, timeouts=1, epochs=2, crashes=2),
    Config("lost replies", program=(N,), replies=1, writes=True),
    Config("pending writes", program=((), L), writes=True, epochs=2, values=2),
    Config("prune", program=((), N), prune_at=1, epochs=2, crashes=2, reader=True),
    Config("exit", program=(K, K), durability="exit"),
    Config("exit refuses", program=(K, N), durability="exit", epochs=2),
    Config("adversary N, looked at", program=(N,), edits=1, epochs=2, reader=True),
    Config("adversary L, any subset", program=(L,), edits=1, epochs=2, subsets=True),
    Config("adversary twice", program=(K,), edits=2, epochs=2, crashes=0),
    Config("failover", program=(N,), failovers=1),
    Config("restore", program=(L, ()), failovers=1, restores=1, crashes=0),
    Config("adoption", program=(N,), losses=1, epochs=4),
)

#: Added by `make campaign-model`.
CAMPAIGN: tuple[Config, ...] = (
    Config("exit and an adversary", program=(K, K), durability="exit", edits=1),
    Config("four epochs, looked at", program=(L,), epochs=4, crashes=2, reader=True),
    Config("restore N and L", program=(("N", "L"),), failovers=1, restores=1, epochs=4, crashes=0),
    Config("two edits, three epochs", program=(N,), edits=2),
    Config("other results, looked at", program=(L, N), crashes=2, values=2, reader=True),
    Config("failover of two steps", program=(L, N), failovers=1),
    Config("restore K", program=((), K), failovers=1, restores=1, epochs=4, crashes=0),
    Config("failover and an edit", program=(N,), failovers=1, edits=1),
    Config(
        "everything lags",
        program=(L,),
        crashes=2,
        strong=False,
        timeouts=1,
        failures=1,
        replies=1,
    ),
    Config("lost replies of two steps", program=(L, N), replies=1, writes=True),
    Config("prune and an edit", program=((), N), prune_at=1, edits=1, epochs=2, reader=True),
    Config("two edits, looked at", program=(N,), edits=2, epochs=2, reader=True),
    Config("any subset twice", program=(L,), edits=2, subsets=True, epochs=2),
    Config("failover, looked at", program=(N,), failovers=1, reader=True),
    Config("any subset, three epochs", program=(N,), edits=1, subsets=True),
    Config("three steps", program=(K, L, N)),
    Config("K twice, looked at", program=(("K", "K"),), reader=True),
    Config(
        "weak lookup, looked at", program=(L,), crashes=2, strong=False, timeouts=1, reader=True
    ),
)


class Mistake(NamedTuple):
    """A broken variant: what is explored, and which harms it may show."""

    config: Config
    harms: frozenset[str]


def _mistake(broken: str, *harms: str, blind: tuple[str, ...] = (), **settings: object) -> Mistake:
    config = Config(broken, broken=broken, blind=frozenset(blind))._replace(**settings)
    return Mistake(config, frozenset(harms))


#: Every mistake that is easy to make. Each has the harms by which it must be caught; the rule that
#: it breaks is itself not looked at where it would show without any harm.
MISTAKES: tuple[Mistake, ...] = (
    _mistake("publish before commit", "false alarm", blind=("unwitnessed",)),
    _mistake("counter without digest", "wrong state"),
    _mistake("acknowledge before publish", "lost checkpoint", blind=("unwitnessed",)),
    _mistake(
        "accept B or B+1",
        "lost checkpoint",
        blind=("unwitnessed", "hole"),
        failovers=1,
        program=((), ()),
    ),
    _mistake(
        "publish with prepare",
        "lost checkpoint",
        blind=("unwitnessed", "hole"),
        failovers=1,
        program=((), ()),
    ),
    _mistake("compare without epoch", "twice", "false alarm", "lost checkpoint", program=(L,)),
    _mistake("no parent check", "hole", failovers=1),
    _mistake("re-base without its parent", "hole", failovers=1),
    _mistake("append behind a later epoch", "false alarm"),
    _mistake("overwriting in place", "false alarm"),
    _mistake("synchronous commit off", "false alarm", "lost checkpoint"),
    _mistake(
        "effect on an unpublished base",
        "false conflict",
        "arguments",
        blind=("unpublished base",),
        program=((), N),
        values=2,
    ),
    _mistake("ledger in A only", "twice", edits=1, epochs=2),
    _mistake("absent while a sender lives", "twice", program=(L,)),
    _mistake("no lease guard", "twice", program=(L,)),
    _mistake("one weak read", "twice", program=(L,), strong=False),
    _mistake("reader reads A first", "false alarm", reader=True),
    _mistake("reader does not look again", "false alarm", reader=True, prune_at=1, program=((),)),
    _mistake(
        "weak high-water store",
        "twice",
        "lost checkpoint",
        "false alarm",
        blind=("mark", "epoch", "unwitnessed"),
    ),
    _mistake(
        "restore without horizon", "twice", program=(N, ()), failovers=1, restores=1, crashes=0
    ),
    _mistake("key of the checkpoint", "twice", program=((), K), failovers=1, restores=1, crashes=0),
    _mistake(
        "adopt while a worker lives",
        "twice",
        "false alarm",
        "lost checkpoint",
        "unwitnessed",
        losses=1,
    ),
    _mistake("adopt without horizon", "twice", losses=1, epochs=4),
    _mistake("orphans alarm", "false alarm"),
    _mistake("gate alarms on orphans", "false alarm"),
    _mistake(
        "guess a lost reply", "lost checkpoint", "false alarm", blind=("unwitnessed",), replies=1
    ),
    _mistake("epoch not grown", "twice", "false alarm", "lost checkpoint"),
    _mistake("collect before publish", "false alarm", prune_at=1, program=((), ()), reader=True),
)
