"""Every way to read a thread, as a question whose answer can be compared.

An answer is either what was served, or `Refusal`. Which pieces the untouched store makes the
decoders read for a question is learned once; later the tripwire holds every read to that order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tests.tamper.tripwire import Piece, Tripwire
from tests.tamper.world import Desk, World, at, delta_graph, desk_graph

from surefoot import SurefootSaver
from surefoot.errors import Refused
from surefoot.flows.acquire import checkpoint_of, effect_of
from surefoot.flows.chain import Chain
from surefoot.flows.load import loader_for
from surefoot.flows.views import viewing
from surefoot.rules.envelope import Kind
from surefoot.rules.events import OURS

__all__ = ["Needs", "Question", "Reader", "Refusal", "Thread"]

Thread: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class Refusal:
    """A typed refusal: the code of the error, and its rules where it names any."""

    code: str
    rules: tuple[str, ...] = ()


@dataclass
class Question:
    """A read of one thread.

    Attributes:
        name: What is called.
        thread: Of whom.
        ask: Asks it.
        answer: What the untouched store answers.
        pieces: What was decoded for it; None: anything that is known may be.
    """

    name: str
    thread: Thread
    ask: Callable[[], Any]
    answer: Any = None
    pieces: Sequence[Piece] | None = ()


@dataclass
class Needs:
    """What a thread's answers rest on: everything else lies beside it.

    Attributes:
        frames: (last_seq, epoch) of frames on the chain up to the published head.
        values: Digests.
        chunks: Number of chunks by log.
    """

    frames: set[tuple[int, int]] = field(default_factory=set)
    values: set[bytes] = field(default_factory=set)
    chunks: dict[int, int] = field(default_factory=dict)


class Reader:
    """Asks questions of all threads of a world, and judges the answers.

    Attributes:
        whole: By thread, the questions that together read all that it holds.
        walks: By thread, the reading of its journal alone: everything is verified, nothing decoded.
        other: By thread, further ways to read it.
        cut: By thread, what else may be served when records beyond the published head are gone.
        needs: By thread, what its answers rest on.
        published: The same without what lies beyond the head, for threads that have such records.
        problems: Answers that should not have been given.
        refusals: How often each code was the answer.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.wire: Tripwire = world.wire
        self.loop = asyncio.new_event_loop()
        self.whole: dict[Thread, list[Question]] = {}
        self.walks: dict[Thread, Question] = {}
        self.other: dict[Thread, list[Question]] = {}
        self.cut: dict[Thread, list[list[Any]]] = {}
        self.needs: dict[Thread, Needs] = {}
        self.published: dict[Thread, Needs] = {}
        self.problems: list[str] = []
        self.refusals: Counter[str] = Counter()
        for thread in world.threads():
            self._learn(thread)

    def close(self) -> None:
        """Ends the event loop."""
        self.loop.close()

    # --- questions --------------------------------------------------------------------------------

    def _learn(self, thread: Thread) -> None:
        saver = self.world.savers[thread[0]]
        self.needs[thread] = _needs(saver, thread[1])
        ask = [Question("list", thread, lambda: [*saver.list(at(thread[1], namespace=None))])]
        if _effects(saver, thread[1]):
            ask.append(Question("effects", thread, lambda: _effects(saver, thread[1])))
        if _tells(saver, thread[1]):
            ask.append(Question("events", thread, lambda: saver.events(thread[1])))
        self.whole[thread] = ask
        self.walks[thread] = Question("walk", thread, lambda: _walk(saver, thread[1]))
        self.other[thread] = self._others(thread, saver)
        for question in (*ask, self.walks[thread], *self.other[thread]):
            with self.wire.learning() as pieces:
                question.answer = question.ask()
            question.pieces = pieces
            if isinstance(question.answer, Refusal):
                raise AssertionError(f"{question.name} of {thread} is refused untouched")

    def _others(self, thread: Thread, saver: SurefootSaver) -> list[Question]:
        name = thread[1]
        listed = [*saver.list(at(name, namespace=None))]
        namespaces = sorted({t.config["configurable"]["checkpoint_ns"] for t in listed})

        async def everything() -> list[Any]:
            return [found async for found in saver.alist(at(name, namespace=None))]

        def wait(coroutine: Any) -> Any:
            return self.loop.run_until_complete(coroutine)

        out: dict[str, Callable[[], Any]] = {
            "get_tuple": lambda: saver.get_tuple(at(name)),
            "aget_tuple": lambda: wait(saver.aget_tuple(at(name))),
            "alist": lambda: wait(everything()),
            "list filter": lambda: [*saver.list(at(name, namespace=None), filter={"step": 1})],
            "list limit": lambda: [*saver.list(at(name), limit=2)],
        }
        if name in self.world.desks or name.startswith("delta"):
            graph = (delta_graph if name.startswith("delta") else _looking)(saver)
            out["get_state"] = lambda: _plain(graph.get_state(at(name), subgraphs=True))
            out["aget_state"] = lambda: _plain(wait(graph.aget_state(at(name))))
            out["get_state_history"] = lambda: [
                _plain(state) for state in graph.get_state_history(at(name))
            ]
        channels = sorted({c for t in listed for c in t.checkpoint["channel_versions"]})[:3]
        delta = {"config": at(name), "channels": channels or ["x"]}
        out["delta history"] = lambda: saver.get_delta_channel_history(**delta)
        out["async delta history"] = lambda: wait(saver.aget_delta_channel_history(**delta))
        for namespace in namespaces:
            if namespace:
                there = at(name, namespace=namespace)
                out[f"get_tuple {namespace}"] = lambda there=there: saver.get_tuple(there)
        for tuple_ in listed[:: max(1, len(listed) // 4)]:
            here = tuple_.config
            out[f"get_tuple of an id {len(out)}"] = lambda here=here: saver.get_tuple(here)
            out[f"list before {len(out)}"] = lambda here=here: [
                *saver.list(at(name, namespace=None), before=here)
            ]
        return [Question(what, thread, call) for what, call in out.items()]

    def learn_cut(self, thread: Thread) -> None:
        """Records beyond the published head are cut off just now: what is served then."""
        with self.wire.learning():
            self.cut.setdefault(thread, []).append([q.ask() for q in self.whole[thread]])
            self.published[thread] = _needs(self.world.savers[thread[0]], thread[1])

    # --- answers ----------------------------------------------------------------------------------

    def asked(self, question: Question) -> Any:
        """The answer of now; the tripwire is set for it."""
        self.wire.in_order(question.pieces)
        trips = len(self.wire.tripped)
        try:
            answer = question.ask()
        except Refused as error:
            answer = Refusal(error.code, tuple(error.fields.get("rules", ())))
            self.refusals[error.code] += 1
        except Exception as error:
            self.problem(question, f"raised {type(error).__name__}: {error}")
            answer = Refusal("untyped")
        if len(self.wire.tripped) != trips:
            self.problem(question, self.wire.tripped[-1])
        return answer

    def problem(self, question: Question, text: str) -> None:
        """Notes what should not have happened."""
        self.problems.append(f"{question.name} of {question.thread}: {text}")

    def refused_or_equal(self, question: Question) -> bool:
        """Asks, and notes a problem if anything else was served; True when it was refused."""
        answer = self.asked(question)
        if isinstance(answer, Refusal):
            return True
        if answer != question.answer:
            self.problem(question, "another answer was served")
        elif not self.wire.complete:
            self.problem(question, "the answer was served without decoding what it consists of")
        return False

    def all_refused_or_equal(self, thread: Thread) -> bool:
        """Reads a whole thread; True when one of its reads was refused."""
        return sum(self.refused_or_equal(question) for question in self.whole[thread]) > 0

    def refused_or_cut(self, thread: Thread) -> bool:
        """Reads a thread whose records beyond the head were edited: they may be gone, no more.

        Returns:
            True when it was refused.
        """
        served = [self.asked(replace(question, pieces=None)) for question in self.whole[thread]]
        allowed = [[q.answer for q in self.whole[thread]], *self.cut.get(thread, [])]
        if any(isinstance(answer, Refusal) for answer in served):
            return True
        if served not in allowed:
            self.problem(self.whole[thread][0], "another answer was served")
        return False

    def unharmed(self, thread: Thread) -> None:
        """An untouched thread is served as ever: anything else is an honest alarm."""
        for question in self.whole[thread]:
            answer = self.asked(question)
            if answer != question.answer or not self.wire.complete:
                self.problem(question, f"not served although untouched: {str(answer)[:200]}")


def _plain(state: Any) -> Any:
    """A state without the objects that are made anew each time."""
    tasks = [(t.name, t.path, t.error, t.interrupts, _nested(t.state)) for t in state.tasks]
    return state.values, state.next, state.config, state.metadata, state.created_at, tasks


def _nested(state: Any) -> Any:
    return _plain(state) if hasattr(state, "tasks") else state


def _walk(saver: SurefootSaver, thread: str) -> list[bytes]:
    """Digests of all records of a thread, verified with their bodies."""

    def read(chain: Chain | None) -> list[bytes]:
        return [] if chain is None else [record.link.digest for record in chain.walk()]

    return viewing(saver.core.ports, thread, read)


def _looking(saver: SurefootSaver) -> Any:
    """The graph of the desk, only to look at its state."""
    return desk_graph(saver, Desk())


def _tells(saver: SurefootSaver, thread: str) -> bool:
    """Whether a thread's trail holds facts of a user's own."""
    return any(not event.kind.startswith(OURS) for event in saver.events(thread))


def _effects(saver: SurefootSaver, thread: str) -> list[Any]:
    """Effects of a thread with their values, as a run that replays or adopts them reads them."""

    def read(chain: Chain | None) -> list[Any]:
        if chain is None:
            return []
        loader = loader_for(saver.core.ports, chain, saver.serde)
        out: list[Any] = []
        for record in chain.walk():
            if record.kind is Kind.CHECKPOINT:
                loose = checkpoint_of(thread, record).loose
                if loose is not None:
                    loader.fetch([loose])
                    out.append((record.link.seq, loader.load(loose)))
            if record.kind is not Kind.EFFECT:
                continue
            body = effect_of(thread, record)
            parts = [body.arguments, body.result, body.receipt, body.evidence]
            typed = [part for part in parts if part is not None]
            loader.fetch(typed)
            out.append((body, [loader.load(part) for part in typed]))
        return out

    return viewing(saver.core.ports, thread, read)


def _needs(saver: SurefootSaver, thread: str) -> Needs:
    """What the answers of an untouched thread rest on, taken down while they are given."""
    needs = Needs()
    store = saver.core.ports.store
    read_values = store.read_values

    def noted(key: int, digests: Any, logs: Any) -> Any:
        needs.values.update(digests)
        for log in logs:
            needs.chunks[log.log_id] = max(log.count, needs.chunks.get(log.log_id, 0))
        return read_values(key, digests, logs)

    def walk(chain: Chain | None) -> None:
        if chain is not None:
            for record in chain.walk(tail=False):
                needs.frames.add(chain.frame_key(record))

    store.read_values = noted
    try:
        list(saver.list(at(thread, namespace=None)))
        _effects(saver, thread)
        if _tells(saver, thread):
            saver.events(thread)
    finally:
        del store.read_values
    viewing(saver.core.ports, thread, walk)
    return needs
