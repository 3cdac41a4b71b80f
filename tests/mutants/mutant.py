"""What a mutant is: one protocol mistake in the sources, as data, and the tests that kill it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PACKAGE", "RULES", "Mutant", "findings", "needed_twice"]

#: Where the files of mutants are, below the root of a tree.
PACKAGE = Path("src", "surefoot")
#: Rules of docs/rules.md that this release keeps; each needs at least two mutants.
RULES = (
    *(f"P{n}" for n in range(8)),
    *(f"R{n}" for n in (1, 2, 3, 4, 5, 6, 12, 13)),
    *(f"E{n}" for n in range(1, 11)),
    *("E4b", "E4c"),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake that is easy to make.

    Attributes:
        id: Rule and a few words.
        file: Below the package.
        old: What stands there now; exactly once in the file.
        new: What the mistake puts in its place.
        why: What it breaks.
        killed_by: Node ids of tests that must fail. One without a bracket stands for all its
            cases, of which at least one must fail.
        may_hang: A test that does not end counts as killed. No other mutant may hang.
    """

    id: str
    file: str
    old: str
    new: str
    why: str
    killed_by: tuple[str, ...]
    may_hang: bool = False

    @property
    def rule(self) -> str:
        """The rule that it breaks."""
        return self.id.split("-")[0]

    @property
    def module(self) -> str | None:
        """Dotted name of the module that it changes; None for a file of SQL."""
        path = Path("surefoot", self.file)
        return ".".join(path.with_suffix("").parts) if path.suffix == ".py" else None

    def applied(self, root: Path) -> str:
        """The text of its file in a tree, with the mistake made.

        Raises:
            ValueError: What it replaces does not stand there exactly once.
        """
        text = (root / PACKAGE / self.file).read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.id}: the old text stands {count} times in {self.file}")
        return text.replace(self.old, self.new)


def needed_twice(mutants: Iterable[Mutant]) -> Iterator[str]:
    """What keeps a table from covering each rule at least twice."""
    counts = Counter(m.rule for m in mutants)
    for rule in RULES:
        if counts[rule] < 2:
            yield f"rule {rule} has {counts[rule]} mutants; it needs two"
    for rule in counts.keys() - {*RULES}:
        yield f"rule {rule} is none of this release"


def findings(mutants: Sequence[Mutant], root: Path) -> Iterator[str]:
    """What is wrong with a table, without running anything."""
    if not mutants:
        yield "there is no mutant"
    for name, count in Counter(m.id for m in mutants).items():
        if count > 1:
            yield f"{name} stands {count} times"
    yield from needed_twice(mutants)
    for mutant in mutants:
        if mutant.old == mutant.new:
            yield f"{mutant.id} changes nothing"
        if not mutant.why or "\n" in mutant.why:
            yield f"{mutant.id} says in one line why it is a mistake"
        if not mutant.killed_by:
            yield f"{mutant.id} names no test that kills it"
        try:
            text = mutant.applied(root)
            if mutant.module:
                compile(text, mutant.file, "exec")
        except (OSError, ValueError, SyntaxError) as error:
            yield f"{mutant.id}: {error}"
