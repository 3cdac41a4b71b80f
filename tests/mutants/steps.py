"""Mistakes in the order of things: rules P0 to P7."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["STEPS"]

_HARDENING = "tests/saver/test_hardening.py::"
_CONFORMS = "tests/highwater/test_conformance.py::test_sqlite_conforms"
_ORDER = "tests/effects/test_order.py::"

STEPS = (
    # --- P0: stores that keep their promises ----------------------------------------------------
    Mutant(
        "P0-content-store-not-asked",
        "assembly.py",
        "            self.ports.store.check_durability()\n",
        "",
        "a database that forgets commits is written to as if it kept them",
        ("tests/saver/test_setup.py::test_no_node_runs_on_a_file_that_may_lose_commits[DELETE]",),
    ),
    Mutant(
        "P0-marks-not-asked",
        "assembly.py",
        "            self.ports.marks.check_durability()\n",
        "",
        "a high-water store that forgets takes every later state for the first one",
        ("tests/saver/test_setup.py::test_no_node_runs_beside_marks_that_may_be_lost",),
    ),
    Mutant(
        "P0-journal-mode-not-looked-at",
        "store/sqlite.py",
        '        if mode != b"wal" or level < 2:',
        "        if level < 2:",
        "another tool has switched the file to a mode that nobody has reasoned about",
        ("tests/store/test_sqlite_store.py::test_another_journal_mode_is_refused",),
    ),
    Mutant(
        "P0-marks-without-sync",
        "highwater/sqlite.py",
        '        if rows[0][0] != "wal" or rows[-1][0] != _FULL:',
        '        if rows[0][0] != "wal":',
        "a mark is acknowledged before it is on the disk, so power loss lowers it",
        ("tests/highwater/test_drivers.py::test_sqlite_weaker_settings_are_refused",),
    ),
    Mutant(
        "P0-trust-on-first-use",
        "flows/acquire.py",
        """            _, facts = gather(ports, thread, None)
            decision = decide_resume(facts)
            if decision.verdict is Verdict.REFUSE:
                raise refusal(thread, decision, facts)
            created""",
        """            created""",
        "a lost mark is made anew beside stored rows, so a rollback becomes a new thread",
        (
            (
                "tests/orders/test_adopt.py::"
                "test_a_thread_is_adopted_under_an_order_and_goes_on[sqlite-K]"
            ),
        ),
    ),
    # --- P1: acquire ------------------------------------------------------------------------------
    Mutant(
        "P1-lease-taken-while-live",
        "rules/lease.py",
        "    if holder_dead:\n        return Acquire.TAKE_OVER\n    if waited_ms < may_wait_ms:",
        "    if holder_dead or waited_ms >= may_wait_ms:\n        return Acquire.TAKE_OVER\n"
        "    if waited_ms < may_wait_ms:",
        "whoever has waited long enough drives a live worker out in the middle of its step",
        (
            "tests/rules/test_lease.py::test_every_acquirer",
            "tests/saver/test_contract.py::test_a_second_live_run_is_busy[sqlite-other process]",
        ),
    ),
    Mutant(
        "P1-epoch-not-raised",
        "highwater/sql/sqlite.sql",
        "  epoch = epoch + 1,",
        "  epoch = epoch,",
        "two owners one after the other share an epoch, so the first one is never fenced",
        (f"{_CONFORMS}[epochs_grow_by_one]",),
    ),
    Mutant(
        "P1-dead-in-another-namespace",
        "rules/lease.py",
        "    if (holder.boot_id, holder.pid_namespace) != "
        "(facts.here.boot_id, facts.here.pid_namespace):",
        "    if holder.boot_id != facts.here.boot_id:",
        "a pid that is unknown in this container says nothing about another container",
        ("tests/rules/test_lease.py::test_every_holder",),
    ),
    Mutant(
        "P1-unknown-is-dead",
        "rules/lease.py",
        "    return bool(holder.start and facts.start_now and holder.start != facts.start_now)",
        "    return holder.start != facts.start_now",
        "a start time that could not be read proves nothing",
        ("tests/rules/test_lease.py::test_every_holder",),
    ),
    Mutant(
        "P1-lost-answer-is-a-failure",
        "flows/acquire.py",
        "        if mark is not None and mark.owner == lease.owner:\n            return mark\n",
        "",
        "a lease whose answer was lost is ours; asking again finds it held by ourselves",
        (
            (
                "tests/crash/test_enumerator.py::"
                "test_lost_reply_of_every_write[linear-sqlite-sync-invoke]"
            ),
        ),
    ),
    # --- P2: load ---------------------------------------------------------------------------------
    Mutant(
        "P2-reader-alarms-without-asking-again",
        "flows/views.py",
        """            again = ports.marks.read(ports.tenant, thread)
            tries -= 1
            if _same_mark(mark, again) or tries == 0:
                raise
            mark = again""",
        """            raise""",
        "a prune that passes by between two reads looks like a rollback",
        (
            (
                f"{_HARDENING}test_a_reader_never_alarms_beside_a_prune_or_a_deletion"
                "[sqlite-delete-state]"
            ),
            (
                f"{_HARDENING}test_a_reader_never_alarms_beside_a_prune_or_a_deletion"
                "[sqlite-prune-older]"
            ),
        ),
    ),
    Mutant(
        "P2-resume-alarms-without-asking-again",
        "flows/acquire.py",
        "        if again is not None and again.epoch != session.epoch:\n            raise Fenced(",
        "        if again is None:\n            raise Fenced(",
        "a worker that was overtaken while it loaded takes its successor's work for an attack",
        (
            (
                f"{_HARDENING}"
                "test_a_worker_that_is_overtaken_while_it_loads_is_fenced_and_alarms_nobody[sqlite]"
            ),
        ),
    ),
    Mutant(
        "P2-oldest-rival-adopted",
        "rules/chain.py",
        "            if rival is None or record.epoch > rival.epoch:",
        "            if rival is None or record.epoch < rival.epoch:",
        "of two workers that died at one place the fenced one had seen less",
        ("tests/rules/test_chain.py::test_the_highest_epoch_wins_at_each_place",),
    ),
    Mutant(
        "P2-early-writes-not-looked-for",
        "flows/chain.py",
        "        if not floor:\n            return []\n",
        "        if floor >= 0:\n            return []\n",
        "writes that came before their checkpoint are lost to whoever loads it",
        (
            "tests/saver/test_contract.py::test_early_writes_of_several_checkpoints_far_apart[sqlite]",
        ),
    ),
    # --- P3: write behind the parent --------------------------------------------------------------
    Mutant(
        "P3-parent-not-required",
        "rules/publish.py",
        "    if not (facts.first_write and facts.parent_stored):\n",
        "    if not facts.first_write:\n",
        "a record is stored behind one that a failover has lost, and hides the loss",
        (
            "tests/rules/test_publish.py::test_the_gate_case_by_case",
            f"{_HARDENING}test_nothing_is_stored_behind_a_record_that_a_failover_lost[sqlite-True]",
        ),
    ),
    Mutant(
        "P3-parent-not-looked-up",
        "flows/journal.py",
        "    parent_stored = session.wrote or _parent_stored(ports, session, order)",
        "    parent_stored = True",
        "the rule is asked, and told what it wants to hear",
        (f"{_HARDENING}test_nothing_is_stored_behind_a_record_that_a_failover_lost[sqlite-True]",),
    ),
    Mutant(
        "P3-re-base-at-any-write",
        "rules/publish.py",
        "    if not (facts.first_write and facts.parent_stored):\n",
        "    if not facts.parent_stored:\n",
        "a head row that is put back under a running worker is taken for an orphan",
        ("tests/rules/test_publish.py::test_the_gate_case_by_case",),
    ),
    Mutant(
        "P3-stored-behind-a-later-epoch",
        "flows/journal.py",
        "            and expected.epoch > session.epoch\n",
        "            and False\n",
        "a stale worker that loads late writes behind its successor, which then alarms",
        (f"{_HARDENING}test_a_worker_that_loads_after_its_fence_stays_outside[sqlite]",),
    ),
    Mutant(
        "P3-gate-without-digest",
        "store/sql/sqlite/queries.sql",
        "  AND head_digest = :expected_digest\nRETURNING key;",
        "RETURNING key;",
        "another record at the same height passes for the one that was expected",
        (
            (
                "tests/store/test_content_store.py::"
                "test_an_unexpected_head_row_stores_nothing_at_all[sqlite-other digest]"
            ),
        ),
    ),
    Mutant(
        "P3-fence-taken-for-a-rollback",
        "rules/publish.py",
        """    if facts.mark_epoch != facts.our_epoch:
        return Then.FENCED
    if facts.stored_is_ours:""",
        """    if facts.mark_epoch != facts.our_epoch:
        return Then.ROLLBACK
    if facts.stored_is_ours:""",
        "an honest takeover raises an alarm, and alarms that cry wolf are switched off",
        ("tests/rules/test_publish.py::test_every_answer_of_the_gate",),
    ),
    # --- P4: publish ------------------------------------------------------------------------------
    Mutant(
        "P4-publish-before-commit",
        "flows/journal.py",
        "        session.key = _store(ports, session, request, _order_of(session, records))\n",
        """        ports.marks.publish(
            session.identity.tenant,
            session.identity.thread,
            Publish(
                epoch=session.epoch,
                seq=session.mark.seq,
                digest=session.mark.digest,
                new_seq=frame.last_seq,
                new_digest=frame.links[-1].digest,
                step=session.step,
                intents=pack_intents(session.intents),
                ttl_ms=ports.policy.lease_ttl_ms,
            ),
        )
        session.mark = frame.links[-1]
        session.key = _store(ports, session, request, _order_of(session, records))
""",
        "a crash between the two leaves a mark of a record that never was: no way back",
        (f"{_ORDER}test_what_is_published_is_stored[sqlite-K-sync]",),
    ),
    Mutant(
        "P4-swap-without-epoch",
        "highwater/sql/sqlite.sql",
        "  AND epoch = :epoch\n  AND seq = :seq\n",
        "  AND seq = :seq\n",
        "a fenced worker moves the mark of its successor",
        (f"{_CONFORMS}[publish_compares]",),
    ),
    Mutant(
        "P4-swap-without-digest",
        "highwater/sql/sqlite.sql",
        "  AND seq = :seq\n  AND digest = :digest\n",
        "  AND seq = :seq\n",
        "a counter alone does not tell two histories of the same height apart",
        (f"{_CONFORMS}[publish_compares]",),
    ),
    Mutant(
        "P4-old-digest-taken-for-committed",
        "rules/publish.py",
        "    if facts.mark_digest == facts.old_digest:\n        return Then.AGAIN",
        "    if facts.mark_digest == facts.old_digest:\n        return Then.COMMITTED",
        "a publish that never arrived is acknowledged",
        (
            "tests/rules/test_publish.py::test_every_mark_after_a_compare_and_set",
            (
                "tests/rules/test_publish.py::"
                "test_intents_alone_are_sent_again_and_never_taken_for_committed"
            ),
        ),
    ),
    Mutant(
        "P4-lost-reply-taken-for-a-failure",
        "flows/journal.py",
        """        except OutcomeUnknown as error:
            lost, done = error, False
        if not done:""",
        """        except OutcomeUnknown:
            raise
        if not done:""",
        "a lost reply is read back, never guessed",
        (f"{_ORDER}test_a_lost_reply_of_a_publish_is_read_back[sqlite-2]",),
    ),
    # --- P5: acknowledge --------------------------------------------------------------------------
    Mutant(
        "P5-acknowledged-before-it-is-published",
        "flows/save.py",
        """    journal.publish(
        ports,
        session,
        free=rest or last or session.paused_at is not None,
        clean=(rest or last) and idle,
        folded=is_root,
    )
""",
        """    if rest or last or session.paused_at is not None:
        journal.publish(ports, session, free=True, clean=(rest or last) and idle, folded=is_root)
""",
        "publishing once at the end is cheaper, and loses every step that was acknowledged",
        (f"{_ORDER}test_a_put_that_has_returned_is_seen_by_everybody[sqlite]",),
    ),
    Mutant(
        "P5-pause-rides-with-a-put-that-never-comes",
        "flows/save.py",
        "        # them, and the run returns only after the last publish (P5).\n"
        "        return Then.PAUSE\n",
        "        # them, and the run returns only after the last publish (P5).\n"
        "        return Then.RIDE\n",
        "the run returns with its question before anybody else can see it",
        (
            (
                "tests/orders/test_retention.py::"
                "test_case_40_a_prune_between_two_of_three_approvals[sqlite]"
            ),
        ),
    ),
    # --- P6: collect ------------------------------------------------------------------------------
    Mutant(
        "P6-prune-deletes-before-it-publishes",
        "flows/maintain.py",
        """        journal.publish(ports, session)
        # Under the lease, and only if nobody has written since: whoever writes next may store
        # values that this plan does not know.
        head = session.stored_head or chain.row.head
        ports.store.collect(chain.row.key, plan.kept_below(session.head.seq, head))
""",
        """        head = session.stored_head or chain.row.head
        ports.store.collect(chain.row.key, plan.kept_below(session.head.seq, head))
        journal.publish(ports, session)
""",
        "who dies between the two has deleted records that the published head still names",
        (
            (
                "tests/orders/test_retention.py::"
                "test_nothing_is_deleted_before_the_record_that_permits_it_is_published"
                "[sqlite-before-prune]"
            ),
        ),
    ),
    Mutant(
        "P6-rows-go-before-the-tombstone",
        "flows/maintain.py",
        "        journal.publish(ports, session, free=True, clean=True, folded=True, "
        'state="tombstone")\n'
        "        if session.key is not None:\n"
        "            ports.store.delete_thread(session.key)\n",
        "        if session.key is not None:\n"
        "            ports.store.delete_thread(session.key)\n"
        "        journal.publish(ports, session, free=True, clean=True, folded=True, "
        'state="tombstone")\n',
        "who dies between the two has made a rollback of its own",
        (
            (
                "tests/orders/test_retention.py::"
                "test_nothing_is_deleted_before_the_record_that_permits_it_is_published"
                "[sqlite-before-delete]"
            ),
        ),
    ),
    Mutant(
        "P6-collected-behind-a-head-that-moved",
        "store/sqlite.py",
        """            if not records.is_head(session, key, kept.head):
                return False
            records.collect_frames""",
        """            records.collect_frames""",
        "a plan that is older than the last write deletes the values of that write",
        (
            (
                "tests/store/test_content_store.py::"
                "test_nothing_is_collected_behind_a_head_that_has_moved[sqlite]"
            ),
            (
                "tests/orders/test_retention.py::"
                "test_a_worker_that_writes_while_a_prune_collects_loses_nothing[sqlite]"
            ),
        ),
    ),
    Mutant(
        "P6-tail-collected",
        "store/sql/sqlite/queries.sql",
        "  AND last_seq <= :above_seq\n",
        "",
        "what was stored after the prune record goes with what is before it",
        ("tests/store/test_content_store.py::test_collecting_keeps_what_it_is_told_to[sqlite]",),
    ),
    Mutant(
        "P6-ancestors-of-a-delta-go",
        "rules/retention.py",
        "            kept.add(ancestor.place)\n",
        "",
        "a channel that is rebuilt from its ancestors comes back silently empty",
        (
            (
                "tests/rules/test_retention.py::"
                "test_a_delta_channel_keeps_its_ancestors_down_to_the_stored_value"
            ),
        ),
    ),
    Mutant(
        "P6-order-gives-up-before-it-is-published",
        "flows/orders.py",
        """            journal.publish(ports, session)
            kept = lenient(""",
        """            kept = lenient(""",
        "who dies between the two has deleted what the old head still needs",
        (
            (
                "tests/orders/test_restore.py::"
                "test_an_order_that_dies_before_it_is_published_has_given_up_nothing[sqlite-before]"
            ),
        ),
    ),
    # --- P7: release ------------------------------------------------------------------------------
    Mutant(
        "P7-clean-kept-on-acquire",
        "highwater/sql/sqlite.sql",
        "  clean = 0,\n  state = 'live'\n",
        "  state = 'live'\n",
        "a crash after a clean release looks like a clean release",
        (f"{_CONFORMS}[clean]",),
    ),
    Mutant(
        "P7-taint-ends-with-any-publish",
        "highwater/sql/sqlite.sql",
        "  tainted = CASE WHEN :folded THEN 0 ELSE tainted END,",
        "  tainted = 0,",
        "a taint stays until the tainted step is folded into a published checkpoint",
        (f"{_CONFORMS}[taint]",),
    ),
    Mutant(
        "P7-clean-while-something-is-sent",
        "flows/acquire.py",
        "                    journal.publish(ports, session, free=True, clean=not session.running)",
        "                    journal.publish(ports, session, free=True, clean=True)",
        "whoever comes next believes that no answer can still be under way",
        (
            (
                f"{_HARDENING}"
                "test_a_thread_is_given_back_as_clean_only_when_nothing_is_being_sent[sqlite-True]"
            ),
        ),
    ),
    Mutant(
        "P7-at-rest-with-sends-waiting",
        "rules/rest.py",
        '    if name in (_TASKS, _START) or name.startswith("branch:to:"):',
        '    if name == _START or name.startswith("branch:to:"):',
        "the lease is given back while tasks of the run are about to start",
        ("tests/rules/test_rest.py::test_at_rest",),
    ),
)
