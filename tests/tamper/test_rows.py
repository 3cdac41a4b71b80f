"""Whole rows: deleted, duplicated, swapped, spliced, moved, cut, retyped; the store put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.tamper import structure
from tests.tamper.campaign import Campaign, Report
from tests.tamper.conftest import backends, finished
from tests.tamper.structure import Edit, judge, some

pytestmark = pytest.mark.optimized


def judged(campaign: Campaign, edits: Iterator[Edit], share: float = 1.0) -> Report:
    """Makes a share of these edits; on PostgreSQL, where all is slower, a third of it."""
    judge(campaign, some(edits, share / 3 if campaign.content.postgres else share))
    return finished(campaign)


def all_refused(report: Report, kind: str) -> None:
    assert report.edits[kind] > 10
    assert report.refused[kind] == report.edits[kind], kind


@backends
def test_case_43_a_row_deleted(campaign: Campaign) -> None:
    judge(campaign, structure.deleted(campaign))
    report = finished(campaign)
    # All but the index of runs and what lies beyond the head.
    assert report.refused["deleted"] > report.edits["deleted"] - 12
    assert report.edits["deleted"] > 180


@backends
def test_case_43_a_row_duplicated_under_another_key(campaign: Campaign) -> None:
    report = judged(campaign, structure.copied_under_another_key(campaign, seed=1))
    assert report.edits["duplicated"] > 60


@backends
def test_case_43_rows_reordered(campaign: Campaign) -> None:
    report = judged(campaign, structure.swapped(campaign, seed=1, count=240))
    assert report.edits.total() > 60


@backends
def test_case_43_the_head_of_one_frame_with_the_body_of_another(campaign: Campaign) -> None:
    report = judged(campaign, structure.spliced(campaign, seed=1, count=150))
    for kind in ("spliced head", "spliced body", "spliced both"):
        all_refused(report, kind)


@backends
def test_case_43_rows_of_another_thread_tenant_or_life(campaign: Campaign) -> None:
    judge(campaign, structure.moved(campaign))
    report = finished(campaign)
    assert report.edits["moved frame"] > 40
    assert report.edits["moved frames"] == 10
    assert report.refused["moved frames"] == 20
    assert report.refused["moved incarnation"] == report.edits["moved incarnation"] == 1


@backends
def test_case_43_a_record_cut_out_of_its_frame(campaign: Campaign) -> None:
    report = judged(campaign, structure.cut_out(campaign), 0.3)
    all_refused(report, "cut or lengthened")
    assert report.refused["record cut out"] == report.edits["record cut out"] > 0


@backends
def test_case_43_the_store_put_back_to_each_earlier_state(campaign: Campaign) -> None:
    judge(campaign, structure.put_back(campaign))
    report = finished(campaign)
    assert report.edits["put back"] == len(campaign.world.snapshots) - 1
    assert report.refused["put back"] > report.edits["put back"] * 2


@backends
def test_case_43_prefixes_and_subsets_of_the_store(campaign: Campaign) -> None:
    step = 7 if campaign.content.postgres else 4
    report = judged(campaign, structure.subsets(campaign, seed=1, count=80, step=step))
    assert report.edits["subset"] > 15
    assert report.edits["prefix"] > 5
    assert report.refused.total() > report.edits.total()


@backends
def test_case_43_a_column_of_another_type(loose_campaign: Campaign) -> None:
    """Whoever may write to the tables may drop their constraints and types as well."""
    postgres = loose_campaign.content.postgres
    edits = structure.retyped(loose_campaign, postgres=postgres)
    report = judged(loose_campaign, edits, 1.0 if postgres else 0.08)
    for column in ("head", "body", "digest", "last_seq", "thread_key"):
        assert report.edits[f"retyped {column}"] > 5
    assert report.refused["retyped head"] >= report.edits["retyped head"] - 1


@backends
def test_case_43_a_changed_row_beside_the_genuine_one(loose_campaign: Campaign) -> None:
    report = judged(loose_campaign, structure.twice_under_one_key(loose_campaign), 0.4)
    assert report.edits["twice under one key"] > 60
