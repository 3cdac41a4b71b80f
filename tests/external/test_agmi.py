"""`agmi-check`, run over SurefootSaver: every published edit is rejected, its controls are not.

The runner, the edits, the controls and the verdicts are those of the package
`agent-memory-integrity`; only the adapters are ours. Its own controls are: the untouched store
verifies, a store opened again without an edit verifies, and the edit landed as it was meant.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from agmi import check
from tests.external.agmi_adapter import (
    OTHER,
    REFERRED,
    SEALED,
    SEED,
    PostgresBlunt,
    PostgresJournal,
    PostgresListChunks,
    PostgresStarts,
    PostgresValues,
    SqliteJournal,
    SqliteListChunks,
    SqliteValues,
    SurefootAdapter,
)

pytestmark = [pytest.mark.optimized, pytest.mark.postgres]

EDITS = [
    "T1 content tamper",
    "T2 tail truncation",
    "T3 middle deletion",
    "T4 reordering",
    "T5 forged insertion",
    "T6 cross-context replay",
    "T7 rollback replay",
    "T8 metadata tamper",
    "T9 snapshot rollback",
]
FORGED = "T5 forged insertion"
#: The rest of them in `make external-agmi` and `make campaign-advisories`.
RUN = [
    kind
    for kind in SEALED
    if os.environ.get("SUREFOOT_FULL") or kind not in (PostgresBlunt, PostgresStarts)
]


def table_of(adapter: SurefootAdapter) -> dict[str, dict[str, Any]]:
    """The suite's rows by the name of the edit; there must be nine."""
    rows = check.run(adapter)
    assert [row["edit"] for row in rows] == EDITS
    return {row["edit"]: row for row in rows}


@pytest.mark.parametrize("kind", RUN, ids=lambda kind: kind.__name__)
def test_nine_of_nine_edits_are_rejected(kind: type[SurefootAdapter]) -> None:
    table = table_of(kind())
    assert {edit: row["verdict"] for edit, row in table.items()} == dict.fromkeys(
        EDITS, "REJECTED"
    ), table


def test_the_suite_has_nine_edits_and_every_kind_is_run() -> None:
    assert list(check.LABELS.values()) == EDITS
    assert len(check.ALL_AT_REST_ATTACKS) == 9
    assert {SqliteJournal, PostgresJournal} <= {*RUN}
    assert len(RUN) >= 8
    assert len(SEALED) == 10
    assert len(REFERRED) == 4


@pytest.mark.parametrize("kind", REFERRED, ids=lambda kind: kind.__name__)
def test_of_what_records_refer_to_every_edit_is_rejected_that_could_be_served(
    kind: type[SurefootAdapter],
) -> None:
    answers: list[Any] = []

    class Watched(kind):  # type: ignore[misc, valid-type]
        def teardown(self) -> None:
            answers.append(self.answers)
            super().teardown()

    table = table_of(Watched())
    verdicts = {edit: row["verdict"] for edit, row in table.items()}
    assert verdicts.pop(FORGED) == "ACCEPTED", table
    assert verdicts == dict.fromkeys([e for e in EDITS if e != FORGED], "REJECTED"), table
    # Untouched, opened again, and with a forged row that nothing refers to: the same answer.
    before, reloaded, after = answers[EDITS.index(FORGED)]
    assert before
    assert before == reloaded == after


@pytest.mark.parametrize(
    "kind",
    [SqliteValues, PostgresValues, SqliteListChunks, PostgresListChunks],
    ids=lambda kind: kind.__name__,
)
def test_a_forged_row_is_not_in_the_way_of_the_next_step(kind: type[SurefootAdapter]) -> None:
    adapter = kind()
    adapter.setup()
    try:
        adapter.seed(3)
        before = adapter.served()
        adapter.write_raw(adapter.forge_record(adapter.read_all_raw()[-1]))
        assert len(adapter.read_all_raw()) == 4
        adapter.append_genuine()
        latest, *rest = adapter.served()
        assert rest[1:] == before[1:]
        text = repr(latest[1]["channel_values"]["state"])
        assert f"{SEED}3" in text or f"{SEED}4" in text
        assert "TAMP" not in text
    finally:
        adapter.teardown()


@pytest.mark.parametrize("kind", [*RUN, *REFERRED], ids=lambda kind: kind.__name__)
def test_control_cases_are_served_unchanged(kind: type[SurefootAdapter]) -> None:
    adapter = kind()
    adapter.setup()
    try:
        adapter.seed(5)
        raw = adapter.read_all_raw()
        assert len(raw) == 5
        untouched = adapter.served()
        assert SEED in repr(untouched)
        assert adapter.verify()
        adapter.reload()
        assert adapter.verify()
        assert adapter.served() == untouched
        adapter.restore_store(adapter.snapshot_store())  # put back as it is: no rollback
        assert adapter.verify()
        assert adapter.served() == untouched
        assert adapter.read_all_raw() == raw
        adapter.seed_other(2)
        assert adapter.served() == untouched
        assert SEED not in repr(adapter.served(OTHER))
    finally:
        adapter.teardown()


@pytest.mark.parametrize("kind", [SqliteJournal, PostgresJournal], ids=lambda kind: kind.__name__)
def test_only_an_integrity_alarm_counts_as_noticed(kind: type[SurefootAdapter]) -> None:
    """The adapter's own strictness: an empty answer or a crash is no rejection."""
    adapter = kind()
    adapter.setup()
    try:
        assert adapter.verify(), "an empty answer counts as served"
        adapter.seed(1)
        adapter.saver.close()
        with pytest.raises(Exception, match="closed"):
            adapter.verify()
    finally:
        adapter.teardown()
