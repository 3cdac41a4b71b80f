"""Mistakes in when the world is touched, and in what a crash means for it: rules E1 to E10."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["EFFECTS"]

_RULES = "tests/rules/test_effects.py::"
_EFFECT = "tests/effects/test_effect.py::"
_READS = "tests/effects/test_reads.py::"
_ORDER = "tests/effects/test_order.py::"
_ADOPTION = "tests/effects/test_adoption.py::"
_OPERATIONS = "tests/effects/test_operations.py::"
_FIRST = "tests/effects/test_ask_first.py::"
_FALLBACK = "tests/effects/test_fallback.py::"
_DOUBT = "tests/effects/test_in_doubt.py::"
_RESTORE = "tests/orders/test_restore.py::"
_MOVED = f"{_RESTORE}test_an_update_of_the_state_after_a_restore_moves_no_effect_out_of_sight"
_HARDENING = "tests/saver/test_hardening.py::"
_CONFORMS = "tests/highwater/test_conformance.py::test_sqlite_conforms"
_DECISIONS = "tests/rules/test_decisions.py::"
_EVENTS = "tests/rules/test_events.py::"
_ORPHANS = "tests/rules/test_orphans.py::"
_TOOLS = "tests/effects/test_tools.py::"
_MIDDLEWARE = "tests/effects/test_middleware.py::"
_READ_RULES = "tests/rules/test_reads.py::"

EFFECTS = (
    # --- E1: the barrier --------------------------------------------------------------------------
    Mutant(
        "E1-async-does-not-wait",
        "langgraph/effects.py",
        "    if flow.require_barrier(session, request):\n",
        '    if flow.require_barrier(session, request) and session.durability == "sync":\n',
        "an effect runs on a step that a crash takes back",
        (f"{_ORDER}test_an_effect_waits_until_its_checkpoint_is_published[before the commit-N]",),
    ),
    Mutant(
        "E1-barrier-passes-under-exit",
        "rules/effects.py",
        "    return Barrier.PASS if safe else Barrier.REFUSE\n",
        "    return Barrier.PASS\n",
        "no checkpoint stands before the effect, so the next run does it again",
        (f"{_RULES}test_the_barrier", f"{_EFFECT}test_durability_exit[sqlite-N-False]"),
    ),
    Mutant(
        "E1-deadline-opens-the-barrier",
        "langgraph/effects.py",
        "        if not passed:\n            raise flow.barrier_timeout(",
        "        if not passed and session.stopped:\n            raise flow.barrier_timeout(",
        "who has waited long enough sends anyway",
        (f"{_EFFECT}test_the_barrier_has_a_deadline",),
    ),
    Mutant(
        "E1-exit-on-an-older-checkpoint",
        "flows/effects.py",
        "    if then is Barrier.PASS and session.started_behind and not request.operation:\n",
        "    if then is Barrier.REFUSE and session.started_behind and not request.operation:\n",
        "without a branch of its own a rerun's effects are taken for those of the first run",
        (f"{_HARDENING}test_exit_durability_refuses_effects_on_an_older_checkpoint[sqlite]",),
    ),
    # --- E2: recorded before and after ------------------------------------------------------------
    Mutant(
        "E2-start-recorded-in-memory-only",
        "flows/effects.py",
        "        _record(ports, session, step.body, step.rows)\n        if step.request.receiver",
        "        session.effects[slot] = step.body\n        if step.request.receiver",
        "after a crash nothing says that it was ever tried",
        (f"{_ORDER}test_an_effect_is_recorded_before_it_is_sent_and_after_it[sqlite-K-sync]",),
    ),
    Mutant(
        "E2-outcome-recorded-in-memory-only",
        "flows/effects.py",
        "        _close(ports, session, body, [*step.rows, *writer.rows])\n"
        "        if lost is not None:",
        "        session.effects[body.slot] = body\n        session.running.discard(body.slot)\n"
        "        if lost is not None:",
        "what happened is forgotten with the process, and happens again or stays in doubt",
        (
            f"{_ORDER}test_an_effect_is_recorded_before_it_is_sent_and_after_it[sqlite-K-sync]",
            f"{_EFFECT}test_runs_once_and_is_replayed_on_resume[sqlite-K-sync]",
            f"{_EFFECT}test_runs_once_and_is_replayed_on_resume[sqlite-N-sync]",
        ),
    ),
    Mutant(
        "E2-note-kept-in-memory",
        "flows/effects.py",
        "        _record(ports, session, step.body, [*step.rows, *writer.rows])\n",
        "        session.effects[step.body.slot] = step.body\n",
        "the provider's id is lost exactly when somebody has to look it up",
        (f"{_ORDER}test_what_a_body_notes_is_stored_at_once[sqlite]",),
    ),
    # --- E3: taint --------------------------------------------------------------------------------
    Mutant(
        "E3-intents-forgotten-at-takeover",
        "flows/acquire.py",
        "        session.intents = unpack_intents(mark.intents)\n",
        "        session.intents = {}\n",
        "what the last owner may have sent counts as never sent",
        (f"{_EFFECT}test_an_outcome_that_could_not_be_recorded_stays_open[N]",),
    ),
    Mutant(
        "E3-missing-record-means-fresh",
        "rules/effects.py",
        '            Verdict.RECONCILE,\n            "an intent without its record',
        '            Verdict.RUN,\n            "an intent without its record',
        "the record was cut off with the tail, the charge was not",
        (f"{_RULES}test_every_call",),
    ),
    Mutant(
        "E3-unclean-takeover-leaves-no-taint",
        "highwater/sql/sqlite.sql",
        "WHEN clean = 0 THEN 1 ELSE tainted END,",
        "ELSE tainted END,",
        "the next owner does not learn that the last one died",
        (f"{_CONFORMS}[taint]",),
    ),
    # --- E4: identity -----------------------------------------------------------------------------
    Mutant(
        "E4-branch-left-out",
        "rules/effects.py",
        "            position.branch,\n",
        '            b"",\n',
        "an intended repeat on a fork gets the result of the other branch",
        (f"{_RULES}test_each_part_of_a_position_counts",),
    ),
    Mutant(
        "E4-task-ids-left-in",
        "rules/effects.py",
        '    return "|".join(part.split(":", 1)[0] for part in namespace.split("|"))',
        "    return namespace",
        "a task id changes whenever the checkpoint before it is made anew",
        (f"{_RULES}test_task_ids_are_no_part_of_a_place",),
    ),
    Mutant(
        "E4-other-arguments-replayed",
        "rules/effects.py",
        "    if not facts.same_arguments:\n",
        '    if not facts.same_arguments and state != "succeeded":\n',
        "a call with another amount gets the receipt of the first one",
        (
            f"{_RULES}test_every_call",
            f"{_EFFECT}test_case_09_other_arguments_at_the_same_place[sqlite-succeeded-N]",
        ),
    ),
    Mutant(
        "E4-calls-not-counted",
        "flows/effects.py",
        "    return replace(position, call=ordinal)\n",
        "    return position\n",
        "two equal calls of one task become one",
        (f"{_EFFECT}test_case_10_twice_in_one_node[sqlite-N]",),
    ),
    # --- E4b: adoption ----------------------------------------------------------------------------
    Mutant(
        "E4b-nothing-is-adopted",
        "rules/effects.py",
        "== (name, arguments) and may_adopt(found)\n",
        "== (name, arguments) and not may_adopt(found)\n",
        "new input after a failed fan-out repeats what the finished branch did",
        (
            f"{_RULES}test_the_oldest_equal_one_is_adopted",
            f"{_ADOPTION}test_case_11_new_input_after_a_failed_fan_out[sqlite-False-sync-N]",
        ),
    ),
    Mutant(
        "E4b-adopted-for-ever",
        "flows/adoption.py",
        "    session.loose = [held for held in session.loose if held is not found]\n",
        "    session.loose = [*session.loose]\n",
        "an intended repeat gets the result of what was adopted before",
        (f"{_ADOPTION}test_it_is_adopted_once_only[N]",),
    ),
    Mutant(
        "E4b-an-adoption-is-forgotten-in-a-crash",
        "flows/adoption.py",
        "        if found.body.origin not in taken\n",
        "        if found.body.origin\n",
        "what the journal's tail has taken over is taken over again",
        (f"{_ADOPTION}test_a_crash_between_the_adoption_and_its_checkpoint[sqlite]",),
    ),
    Mutant(
        "E4b-a-doubt-is-adopted-as-never-sent",
        "flows/effects.py",
        "        intent=slot in session.intents or bool(held is not None and held.adopted),\n",
        "        intent=slot in session.intents,\n",
        "what was started under the old slot counts as never sent under the new one",
        (f"{_ADOPTION}test_a_start_of_a_dead_process_is_adopted_as_maybe_sent[sqlite-N]",),
    ),
    Mutant(
        "E4b-an-update-consumes-what-it-drops",
        "flows/adoption.py",
        '    if under and source == "update" and _clears(',
        '    if under and source == "update" or _clears(',
        "a branch that an update dropped runs again, and so does its effect",
        (f"{_ADOPTION}test_an_update_drops_what_the_tasks_have_written[sqlite-sync]",),
    ),
    Mutant(
        "E8-a-caught-failure-is-made-again",
        "rules/effects.py",
        "    return facts.not_sent and facts.passed and not facts.ended\n",
        "    return False\n",
        "the node fell back on another provider, and both are paid",
        (f"{_FALLBACK}test_the_first_provider_is_not_paid_as_well[sqlite]",),
    ),
    Mutant(
        "E8-a-failure-stands-for-ever",
        "flows/effects.py",
        "        ended=held.ended,\n",
        "        ended=False,\n",
        "a call that failed beside another one never runs again",
        (f"{_FALLBACK}test_beside_another_one_it_may_be_retried[sqlite]",),
    ),
    # --- E4c: operations --------------------------------------------------------------------------
    Mutant(
        "E4c-an-operation-belongs-to-its-thread",
        "flows/operations.py",
        "operation_thread(name, request.operation), None, wait=False)\n",
        "operation_thread(name, request.operation) + session.identity.thread, None)\n",
        "two threads charge one invoice",
        (f"{_OPERATIONS}test_once_for_all_threads_and_runs[sqlite-sync-sync-N]",),
    ),
    Mutant(
        "E4c-names-run-together",
        "rules/effects.py",
        "{quote(name, safe='', errors='surrogatepass')}",
        "{name}",
        "two operations with a colon in a name or an id share a journal and a lease",
        (f"{_RULES}test_each_operation_has_a_journal_of_its_own",),
    ),
    # --- E7: asked before the first node ----------------------------------------------------------
    Mutant(
        "E7-nobody-is-asked-first",
        "langgraph/saver.py",
        "        if fresh and questions(session):\n",
        "        if not fresh and questions(session):\n",
        "a model decides what to do next before anybody knows what was done",
        (f"{_FIRST}test_the_receiver_is_asked_before_any_node[sqlite-sync]",),
    ),
    Mutant(
        "E7-absent-counts-at-load",
        "flows/effects.py",
        "        elif isinstance(answer, Conflicting):\n",
        "        elif isinstance(answer, Absent):\n"
        '            _close(ports, session, replace(step.body, state="absent"), ())\n'
        "        elif isinstance(answer, Conflicting):\n",
        "the request of the last owner may still be under way",
        (f"{_FIRST}test_the_thread_loads_at_once_and_only_the_effect_waits",),
    ),
    Mutant(
        "E7-an-open-call-was-not-carried-out",
        "rules/orphans.py",
        '    if any(state != "succeeded" for state in own):\n',
        '    if any(state not in {*_OPEN, "succeeded"} for state in own):\n',
        "a call that may have happened is taken for one that did, or did not",
        (f"{_ORPHANS}test_the_fate_of_a_call",),
    ),
    Mutant(
        "E7-an-effect-below-a-tool-is-denied",
        "rules/orphans.py",
        '    if any(state != "succeeded" for state in loose):\n',
        '    if any(state == "needs_review" for state in loose):\n',
        "what a tool had begun inside is never asked about",
        (f"{_ORPHANS}test_the_fate_of_a_call",),
    ),
    Mutant(
        "E7-what-cannot-be-read-is-denied",
        "rules/orphans.py",
        "    if any(state not in _NOTHING for state in facts.unread):\n",
        "    if False:\n",
        "the model hears that nothing was carried out, and pays again",
        (
            f"{_ORPHANS}test_what_may_belong_to_the_call_is_never_denied",
            (
                f"{_TOOLS}test_an_orphan_whose_message_is_not_stored_is_never_denied"
                "[sqlite-sync-not-stored]"
            ),
        ),
    ),
    Mutant(
        "E7-what-was-answered-is-asked-about-for-ever",
        "flows/orphans.py",
        "            folded.update(body.folds)\n",
        "",
        "a thread that keeps its messages in a DeltaChannel never takes new input again",
        ((f"{_TOOLS}test_what_the_state_has_taken_up_is_no_effect_of_an_orphan[sync-not-stored]"),),
    ),
    Mutant(
        "E7-search-ends-where-nothing-is-stored",
        "flows/orphans.py",
        "            unread = holding is None and e.slot not in folded\n",
        "            unread = bool(holding) and e.slot not in folded\n",
        "an effect under messages that are not stored belongs to no call",
        (
            (
                f"{_TOOLS}test_an_orphan_whose_message_is_not_stored_is_never_denied"
                "[sqlite-sync-not-stored]"
            ),
        ),
    ),
    # --- E5: intents ------------------------------------------------------------------------------
    Mutant(
        "E5-no-intent-for-class-n",
        "flows/effects.py",
        "        if step.request.receiver is not Receiver.DEDUPLICATES or ",
        "        if step.request.receiver is Receiver.CAN_BE_ASKED or ",
        "after a takeover nothing says that it may have been sent",
        (
            f"{_EFFECT}test_an_outcome_that_could_not_be_recorded_stays_open[N]",
            f"{_ORDER}test_an_effect_is_recorded_before_it_is_sent_and_after_it[sqlite-N-sync]",
        ),
    ),
    Mutant(
        "E5-intent-rides-with-the-next-publish",
        "flows/effects.py",
        "            session.intents[slot] = session.epoch\n"
        "            journal.publish(ports, session)\n",
        "            session.intents[slot] = session.epoch\n",
        "the announcement arrives after what it announces, or never",
        (f"{_ORDER}test_an_effect_is_recorded_before_it_is_sent_and_after_it[sqlite-L-sync]",),
    ),
    Mutant(
        "E5-absent-counted-once",
        "rules/effects.py",
        "    return settled and (strong or reads >= 2)\n",
        "    return settled and (strong or reads >= 1)\n",
        "a lookup that lags says absent of what has just happened",
        (f"{_RULES}test_when_absent_counts", f"{_EFFECT}test_absent_now_and_found_later"),
    ),
    Mutant(
        "E2-reads-stay-in-memory",
        "flows/effects.py",
        "    reads, read = save.waiting_reads(session)\n",
        "    reads, read = [], []\n",
        "a process dies after an effect, and what its arguments were made of is read anew",
        ((f"{_READS}test_what_an_effect_may_depend_on_outlives_the_process[sqlite-K-sync]"),),
    ),
    Mutant(
        "E4-a-subgraph-forgets-what-it-folded",
        "flows/save.py",
        '    if body.namespace == "":\n        gone |= {\n',
        "    if gone:\n        gone |= {\n",
        "a node is retried, and the effects of the subgraph that it calls happen again",
        (f"{_EFFECT}test_case_07_a_retry_of_the_node_that_called_a_subgraph[sqlite-N-1]",),
    ),
    Mutant(
        "E4-reads-keep-their-first-name",
        "flows/reads.py",
        "        final = _final_slot(session, step) or step.slot\n        stored",
        "        final = step.slot\n        stored",
        "a retry enters its subgraph under other checkpoints, and reads anew",
        (f"{_READS}test_inside_a_subgraph[sqlite-retry]",),
    ),
    Mutant(
        "E4-an-old-answer-for-a-new-question",
        "rules/reads.py",
        "    if not facts.same_inputs:\n",
        "    if not facts.same_inputs and facts.freshness_us:\n",
        "another question gets the answer that is recorded",
        ("tests/rules/test_reads.py::test_other_inputs_are_never_answered_by_the_record",),
    ),
    Mutant(
        "E5-settling-time-ignored",
        "flows/effects.py",
        "    settled = ports.host.monotonic_ms() >= step.absent_from_ms\n",
        "    settled = True\n",
        "the request of the last owner is still under way when its absence is counted",
        (f"{_EFFECT}test_absent_does_not_count_before_the_settling_time",),
    ),
    Mutant(
        "E5-intents-never-leave",
        "flows/save.py",
        "        session.intents.pop(slot, None)\n        held = session.effects.get(slot)\n",
        "        held = session.effects.get(slot)\n",
        "an intent whose step is folded blocks nothing any more, and the mark grows for ever",
        (f"{_HARDENING}test_effects_left_in_doubt_do_not_pile_up_in_the_mark[sqlite]",),
    ),
    Mutant(
        "E5-doubts-found-by-the-hint-alone",
        "flows/doubts.py",
        '            if mark.state != "tombstone":\n',
        '            if mark.state == "frozen":\n',
        "whoever edits the hint in the database hides an effect in doubt",
        (f"{_DOUBT}test_whoever_edits_the_hint_hides_nothing[sqlite-N-open]",),
    ),
    Mutant(
        "E5-left-open-not-witnessed",
        "session.py",
        "            self.intents.setdefault(LEFT_OPEN, self.epoch)\n",
        "            pass\n",
        "what a checkpoint has left open is known to the database alone",
        (f"{_DOUBT}test_whoever_edits_the_hint_hides_nothing[sqlite-N-left behind]",),
    ),
    # --- E6: horizon and orders -------------------------------------------------------------------
    Mutant(
        "E6-restore-without-horizon",
        "flows/orders.py",
        "        session.horizon = _widest(horizon, session)\n        session.head = head\n",
        "        session.horizon = NO_HORIZON\n        session.head = head\n",
        "what happened in the lost steps happens again",
        (
            (
                f"{_RESTORE}test_a_lost_effect_that_nobody_can_be_asked_about_stops_the_run_until"
                "_a_decision[sqlite]"
            ),
        ),
    ),
    Mutant(
        "E6-chain-goes-on-through-what-was-given-up",
        "flows/chain.py",
        "                at = self._restored(record)\n",
        "                self._restored(record)\n",
        "the order stands above the records that it gave up, and they are not there",
        (f"{_RESTORE}test_after_the_order_the_run_goes_on_and_no_effect_happens_twice[sqlite-K]",),
    ),
    Mutant(
        "E6-horizon-dropped-by-the-next-checkpoint",
        "flows/save.py",
        "    extra |= _lost_history(session, save, born=born)\n",
        "",
        "the second resume after a restore no longer sees the order",
        (_RESTORE + "test_the_horizon_covers_the_steps_of_a_branch_that_was_left[sqlite]",),
    ),
    Mutant(
        "E6-horizon-one-step-short",
        "session.py",
        "        if self.horizon is None or root_step > self.horizon:\n",
        "        if self.horizon is None or root_step >= self.horizon:\n",
        "the step under the lost head was running when it was lost",
        (f"{_RESTORE}test_the_horizon_ends_with_the_steps_that_were_lost[sqlite]",),
    ),
    Mutant(
        "E6-proof-older-than-what-was-lost",
        "rules/effects.py",
        "    if state in PROVEN_NOTHING and facts.lost:\n",
        "    if False:\n",
        "the attempt after the recorded failure happened, and was lost",
        (
            f"{_RESTORE}test_a_proof_from_before_the_lost_history_proves_nothing[sqlite-failed-N]",
            f"{_RESTORE}test_a_proof_from_before_the_lost_history_proves_nothing[sqlite-failed-L]",
        ),
    ),
    Mutant(
        "E6-record-since-the-order-does-not-count",
        "session.py",
        "        return self.effect_at.get(slot, 0) < self.horizon_at\n",
        "        return True\n",
        "what a person settled after the order is asked about for ever",
        (f"{_RESTORE}test_an_effect_that_is_approved_as_absent_runs_once[sqlite]",),
    ),
    Mutant(
        "E6-another-history-keeps-its-keys",
        "rules/effects.py",
        "    if facts.receiver is Receiver.DEDUPLICATES and facts.lost and facts.apart:\n",
        "    if False:\n",
        "an update of the state has moved the slots, so K is sent under another key",
        (
            f"{_MOVED}[sqlite-1-K]",
            f"{_RESTORE}test_new_input_at_a_lost_step_never_gets_the_lost_key[sqlite]",
        ),
    ),
    Mutant(
        "E6-absent-under-another-key-runs",
        "flows/effects.py",
        "    if not step.may_run:\n",
        "    if False:\n",
        "it was looked up under another key than it was sent with",
        (f"{_MOVED}[sqlite-1-L]",),
    ),
    Mutant(
        "E6-inserted-steps-shift-the-lost-ones-past-the-horizon",
        "flows/save.py",
        "            horizon, apart = horizon + 1, True\n",
        "            apart = True\n",
        "the last lost step lies behind the horizon after an update of the state",
        (f"{_MOVED}[sqlite-3-N]",),
    ),
    Mutant(
        "E6-copy-hides-the-horizon",
        "flows/maintain.py",
        '            "horizon": session.horizon,\n',
        "",
        "the newest checkpoint says that nothing was lost",
        (f"{_RESTORE}test_a_copy_into_a_restored_thread_does_not_hide_the_horizon[sqlite-N]",),
    ),
    Mutant(
        "E9-key-of-whoever-seals-the-step-again",
        "flows/save.py",
        "    return ports.seals.primary() if held is None else held.key_id\n",
        "    return ports.seals.primary()\n",
        "a step that is made again after a rotation sends under another key",
        (f"{_RESTORE}test_keys_sent_to_receivers_do_not_turn_with_the_sealing_key[sqlite-K]",),
    ),
    Mutant(
        "E6-mark-takes-the-step-of-the-last-branch",
        "flows/save.py",
        "        session.step = max(session.step, body.step)\n        session.writes_through",
        "        session.step = body.step\n        session.writes_through",
        "a fork at a lower step hides how far the lost history went",
        (f"{_RESTORE}test_the_mark_keeps_the_highest_step[sqlite]",),
    ),
    Mutant(
        "E6-order-below-the-lost-head",
        "flows/orders.py",
        'f"its horizon is below the lost head\'s step {mark.step}" if horizon < mark.step else "",',
        'f"its horizon is below the lost head\'s step {mark.step}" if horizon < -2 else "",',
        "an order may not promise that less was lost than was",
        (f"{_RESTORE}test_an_order_for_something_else_changes_nothing[sqlite-changes5-horizon]",),
    ),
    Mutant(
        "E6-signature-not-checked",
        "signing.py",
        "            key.verify(\n"
        "                bytes.fromhex(signed.signature), "
        "signed_bytes(signed.decision, signed.key_id)\n"
        "            )\n",
        "            bytes.fromhex(signed.signature)\n",
        "whoever knows the name of an operator orders a restore",
        (f"{_RESTORE}test_who_signed_is_checked_before_anything_else[sqlite]",),
    ),
    Mutant(
        "E6-order-not-bound-to-the-head",
        "rules/decisions.py",
        "    if (decision.head_seq, decision.head_digest) != "
        "(facts.head_seq, facts.head_digest.hex()):",
        "    if decision.head_seq > facts.head_seq:",
        "an order that was signed for another state of the thread is carried out on this one",
        (
            f"{_DECISIONS}test_whatever_has_moved_makes_it_void",
            f"{_RESTORE}test_an_order_is_carried_out_once[sqlite]",
        ),
    ),
    Mutant(
        "E6-nonce-not-consumed",
        "rules/decisions.py",
        "    if facts.consumed:\n",
        "    if facts.consumed and facts.now >= decision.expires:\n",
        "one signature is good for as many orders as somebody likes to send",
        (f"{_DECISIONS}test_whatever_has_moved_makes_it_void",),
    ),
    Mutant(
        "E6-order-does-not-expire",
        "rules/decisions.py",
        "    if facts.now >= decision.expires:\n",
        "    if facts.now < decision.not_before and facts.now >= decision.expires:\n",
        "an order that was never carried out lies in a drawer for ever",
        (
            f"{_DECISIONS}test_whatever_has_moved_makes_it_void",
            f"{_RESTORE}test_an_order_holds_from_its_start_to_its_end[sqlite]",
        ),
    ),
    # --- E8: what proves something ----------------------------------------------------------------
    Mutant(
        "E8-timeout-is-a-proven-failure",
        "langgraph/effects.py",
        "        proven = seen.not_sent or isinstance(error, NeverRan)\n",
        "        proven = seen.not_sent or isinstance(error, (NeverRan, TimeoutError))\n",
        "the receiver may have done it and be slow to say so",
        (f"{_EFFECT}test_class_n_is_never_sent_again[sqlite]",),
    ),
    Mutant(
        "E8-read-timeout-is-a-proof",
        "rules/transport.py",
        "    {Trouble.REFUSED, Trouble.CONNECT_TIMEOUT, Trouble.NO_SLOT, Trouble.NOT_BUILT}\n",
        "    {Trouble.REFUSED, Trouble.CONNECT_TIMEOUT, Trouble.NO_SLOT, Trouble.READ_TIMEOUT}\n",
        "the receiver may have done it and be slow to say so",
        ("tests/rules/test_transport.py::test_only_what_came_before_sending_is_a_proof",),
    ),
    Mutant(
        "E8-redirect-forgotten",
        "rules/transport.py",
        "    if proven and facts.earlier:\n",
        "    if proven and facts.earlier and facts.status:\n",
        "the request that was redirected has been carried out already",
        ("tests/effects/test_transport.py::test_after_a_redirect_the_first_request_has_been_sent",),
    ),
    Mutant(
        "E8-resend-closes-the-first-attempt",
        "rules/transport.py",
        "    return not_sent and not resent and not ambiguous\n",
        "    return not_sent and not ambiguous\n",
        "the first attempt landed, and the next one may come with another amount",
        (
            (
                "tests/effects/test_transport.py::"
                "test_a_resend_that_is_not_sent_proves_nothing_about_the_first_one[sqlite]"
            ),
        ),
    ),
    Mutant(
        "E2-same-database-orphan-passed-over",
        "flows/journal.py",
        "            follows = record.kind is Kind.EFFECT and record.prev == session.head.digest\n",
        "            follows = False\n",
        "a stale worker's rows are committed, its record is not adopted, and it is done again",
        (
            (
                "tests/effects/test_same_database.py::"
                "test_no_first_write_passes_over_a_late_commit[postgres]"
            ),
        ),
    ),
    Mutant(
        "E8-a-tool's-time-out-is-told-to-the-model",
        "langgraph/effects.py",
        "    if tool is not None:\n        # A tool node tells",
        "    if False:\n        # A tool node tells",
        "the model calls again, at another place and under another key",
        (
            (
                f"{_EFFECT}test_a_tool_error_that_proves_nothing_is_no_message_for_the_model"
                "[sqlite-True-True-False-N]"
            ),
        ),
    ),
    Mutant(
        "E8-a-dead-worker-leaves-no-doubt",
        "rules/doubts.py",
        '        return None if facts.live else "it was started, and its worker is gone"\n',
        "        return None\n",
        "what nobody can prove stands in no queue, so nobody looks",
        (
            "tests/rules/test_doubts.py::test_what_is_in_doubt",
            f"{_DOUBT}test_what_a_dead_worker_has_started_is_in_doubt[sqlite-N]",
        ),
    ),
    Mutant(
        "E8-an-intent-without-its-record-is-no-doubt",
        "rules/doubts.py",
        'it may have been sent" if facts.intent else None\n',
        'it may have been sent" if False else None\n',
        "the record was cut off, what it announced may have been sent",
        (
            "tests/rules/test_doubts.py::test_what_is_in_doubt",
            f"{_DOUBT}test_an_intent_without_its_record_is_in_doubt[sqlite]",
        ),
    ),
    Mutant(
        "E8-a-state-of-a-later-release-is-settled",
        "rules/doubts.py",
        "    return state not in _CLOSED\n",
        '    return state in {"started", "in_doubt", "needs_review"}\n',
        "what this release cannot read is taken for done",
        ("tests/rules/test_doubts.py::test_what_is_in_doubt",),
    ),
    Mutant(
        "E4-a-read-tool's-failure-is-replayed",
        "langgraph/read_tools.py",
        '    if isinstance(answer, ToolMessage) and answer.status == "error":\n',
        "    if False:\n",
        "an error of the network stands for the answer, however often the run is resumed",
        (f"{_MIDDLEWARE}test_a_read_tool_that_failed_is_asked_again[sync]",),
    ),
    Mutant(
        "E4-a-model's-answer-to-another-prompt",
        "langgraph/read_tools.py",
        '            "system message": request.system_message,\n',
        "",
        "the answer to the old instructions stands for the new ones",
        (f"{_MIDDLEWARE}test_another_question_is_not_answered[sync-prompt]",),
    ),
    Mutant(
        "E7-a-read-is-taken-for-an-effect",
        "flows/orphans.py",
        "            if effect.receiver == READ:\n",
        "            if effect.receiver == READ and effect.key:\n",
        "what a call has looked up is taken for what it did",
        (f"{_MIDDLEWARE}test_a_read_of_a_stopped_turn_is_no_effect[sqlite-sync]",),
    ),
    Mutant(
        "E8-the-trail-forgets-a-doubt",
        "rules/folding.py",
        '_DOUBTFUL = frozenset({"in_doubt", "needs_review"})\n',
        '_DOUBTFUL = frozenset({"needs_review"})\n',
        "a thread whose effect is unknown is shown as going on",
        (f"{_EVENTS}test_statuses_along_the_way",),
    ),
    Mutant(
        "E4b-the-trail-counts-an-adopted-effect-twice",
        "rules/folding.py",
        "                newest[found.adopted or slot] = found\n",
        "                newest[slot] = found\n",
        "the start that another place took over still stands as started",
        (f"{_EVENTS}test_an_adopted_effect_counts_once_and_is_not_left_started",),
    ),
    Mutant(
        "E4-an-answer-older-than-its-freshness",
        "rules/reads.py",
        "    if facts.age_us >= facts.freshness_us:\n",
        "    if facts.age_us > 2 * facts.freshness_us:\n",
        "the run acts on a value that its rule calls too old",
        (f"{_READ_RULES}test_an_outcome_is_replayed_while_it_is_fresh",),
    ),
    Mutant(
        "E4-what-an-effect-is-made-of-ages",
        "rules/reads.py",
        "    if facts.used:\n",
        "    if facts.used and facts.freshness_us is None:\n",
        "what a finished effect was made of is read again, and its call is a conflict for ever",
        (f"{_READ_RULES}test_what_an_effect_is_made_of_has_no_age",),
    ),
    Mutant(
        "E4-a-fork-looks-at-the-line-it-has-left",
        "flows/reads.py",
        '                if not line or body.root in ("", wanted):\n',
        "                if body.root or not line:\n",
        "another branch has observed what is there now, so a stale plan is carried out",
        (f"{_READS}test_a_fork_depends_on_what_it_was_planned_on[sqlite-True]",),
    ),
    Mutant(
        "E4-an-age-from-the-future-counts",
        "rules/reads.py",
        "    if facts.age_us is None or facts.age_us < 0:\n",
        "    if facts.age_us is None:\n",
        "after the clock stepped back a stale value stays fresh for as long",
        (f"{_READ_RULES}test_an_outcome_is_replayed_while_it_is_fresh",),
    ),
    Mutant(
        "E8-broken-lookup-says-absent",
        "langgraph/hooks.py",
        '        return Unknown(f"the lookup raised {type(answer).__qualname__}; '
        'repair it and run again")\n',
        "        return Absent()\n",
        "a lookup that fails proves nothing",
        (f"{_EFFECT}test_what_says_nothing_proves_nothing",),
    ),
    Mutant(
        "E8-evidence-not-compared",
        "flows/effects.py",
        "        differs = decide_match(request.compare, request.arguments, answer.evidence)\n",
        "        differs = None\n",
        "something that the receiver holds under the key is taken for this effect",
        (f"{_EFFECT}test_what_does_not_match_goes_to_review[another amount]",),
    ),
    Mutant(
        "E8-receipt-not-read-again",
        "flows/orders.py",
        "    if _digest_of(ports, serde, chain, effect.receipt) != decision.receipt_digest:\n",
        "    if not decision.receipt_digest:\n",
        "a person decided about another receipt than the one that is there now",
        (
            (
                "tests/orders/test_adopt.py::"
                "test_an_approval_is_bound_to_the_effect_as_it_was_looked_at[sqlite]"
            ),
        ),
    ),
    # --- E9: the receiver's key -------------------------------------------------------------------
    Mutant(
        "E9-key-of-the-primary-of-the-moment",
        "flows/effects.py",
        "    key_id = ports.seals.primary() if root is None else root.key_id\n",
        "    key_id = ports.seals.primary()\n",
        "a rotation between two attempts changes the key, and the receiver charges twice",
        (f"{_HARDENING}test_the_idempotency_key_outlives_a_rotation[sqlite]",),
    ),
    Mutant(
        "E9-key-of-the-attempt",
        "flows/effects.py",
        "            key=body.key if held is None else held.key,\n",
        '            key=body.key if held is None else f"{held.key[:-2]}{held.attempt:02d}",\n',
        "every attempt is a new charge to the receiver",
        (f"{_EFFECT}test_class_k_is_sent_again_with_the_same_key[sqlite]",),
    ),
    Mutant(
        "E9-key-of-the-checkpoint",
        "flows/effects.py",
        "        key=idempotency_key(purpose, slot) if held is None else held.key,\n",
        "        key=idempotency_key(purpose, checkpoint_id.encode() + slot)\n"
        "        if held is None\n        else held.key,\n",
        "the id of a checkpoint changes when a lost step is run again",
        (f"{_RESTORE}test_after_the_order_the_run_goes_on_and_no_effect_happens_twice[sqlite-K]",),
    ),
    Mutant(
        "E9-key-without-a-secret",
        "rules/effects.py",
        '    return hmac.digest(purpose_key, tlv("idempotency/v1", slot), "sha256").hex()[:32]',
        '    return hashlib.sha256(tlv("idempotency/v1", slot)).hexdigest()[:32]',
        "whoever knows a thread's name can use up the key before it is sent",
        (f"{_RULES}test_the_key_is_a_keyed_digest_of_the_slot",),
    ),
    # --- E10: the latch ---------------------------------------------------------------------------
    Mutant(
        "E10-latch-not-set-by-a-failed-write",
        "flows/journal.py",
        """    except SurefootError as error:
        session.latch(error)
        raise
    except BaseException:
        session.latch(StoreUnavailable(store=ports.store.shown""",
        """    except SurefootError:
        raise
    except BaseException:
        session.latch(StoreUnavailable(store=ports.store.shown""",
        "the next record follows one that may or may not be there",
        (
            (
                f"{_HARDENING}test_after_a_failed_write_nothing_of_the_session_is_stored_or_published"
                "[sqlite-store.append]"
            ),
        ),
    ),
    Mutant(
        "E10-latch-not-set-by-a-failed-publish",
        "flows/journal.py",
        """    except SurefootError as error:
        session.latch(error)
        raise
    except BaseException:
        session.latch(
            StoreUnavailable(store=ports.marks.shown""",
        """    except SurefootError:
        raise
    except BaseException:
        session.latch(
            StoreUnavailable(store=ports.marks.shown""",
        "a run goes on although nobody knows whether its step counts",
        (
            (
                f"{_HARDENING}test_after_a_failed_write_nothing_of_the_session_is_stored_or_published"
                "[sqlite-marks.publish]"
            ),
        ),
    ),
    Mutant(
        "E10-latch-not-checked-by-writes",
        "flows/journal.py",
        "    session.check_latch()\n    try:\n        frame, request = _sealed(\n",
        "    try:\n        frame, request = _sealed(\n",
        "a session that has lost its place writes on",
        (
            (
                f"{_HARDENING}test_after_a_failed_write_nothing_of_the_session_is_stored_or_published"
                "[sqlite-store.append]"
            ),
        ),
    ),
    Mutant(
        "E10-effect-starts-after-a-refused-step",
        "flows/effects.py",
        "        session.check()\n        position = _position(session, request)\n"
        "        slot = slot_of(position)\n        if slot in session.running:\n",
        "        position = _position(session, request)\n"
        "        slot = slot_of(position)\n        if slot in session.running:\n",
        "the step before it can never be stored, so the effect happens again",
        (f"{_ORDER}test_after_a_value_that_cannot_be_stored_no_effect_starts[handle-N]",),
    ),
    Mutant(
        "E10-step-goes-on-without-its-writes",
        "flows/save.py",
        "        session.refuse_step(save.namespace, save.checkpoint_id, error)\n",
        "",
        "a checkpoint follows a step whose result could not be stored",
        (f"{_ORDER}test_after_a_value_that_cannot_be_stored_no_effect_starts[handle-N]",),
    ),
    Mutant(
        "E2-same-database-behind-an-unpublished-checkpoint",
        "flows/same_database.py",
        "            journal.publish(ports, session)\n",
        "",
        "whoever comes next gives the checkpoint up, and with it the record of what is committed",
        (
            (
                "tests/effects/test_same_database.py::"
                "test_the_record_never_follows_a_checkpoint_that_is_not_published[sqlite]"
            ),
            (
                "tests/effects/test_same_database.py::"
                "test_a_stale_worker_is_stopped_before_the_body[sqlite]"
            ),
        ),
    ),
    Mutant(
        "E6-not-found-is-an-ordinary-doubt",
        "flows/effects.py",
        '        state="needs_review",\n',
        '        state="in_doubt",\n',
        "the next attempt asks again, under the wrong key, and sends on its absence",
        (
            (
                "tests/orders/test_restore.py::"
                "test_not_found_after_an_update_is_for_a_person_however_often_it_is_tried"
                "[sqlite-at once]"
            ),
        ),
    ),
    Mutant(
        "E6-an-answer-makes-a-lost-step-known",
        "flows/acquire.py",
        "    if effect.only_asked:\n        return\n",
        "",
        "a lookup that said nothing lets the next one send what a lost history has sent",
        (
            (
                "tests/orders/test_restore.py::"
                "test_not_found_after_an_update_is_for_a_person_however_often_it_is_tried"
                "[sqlite-after no answer]"
            ),
        ),
    ),
)
