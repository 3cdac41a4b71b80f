"""Mistakes in what may be read or resumed: rules R1 to R6, R12 and R13."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["RESUME"]

_CONTRACT = "tests/saver/test_contract.py::"
_HARDENING = "tests/saver/test_hardening.py::"
_CONFORMS = "tests/highwater/test_conformance.py::test_sqlite_conforms"
_ADOPT = "tests/orders/test_adopt.py::"
_KEYS = "tests/orders/test_keys.py::"
_CIPHER = "tests/encryption/test_cipher.py::"

RESUME = (
    # --- R1: fresh --------------------------------------------------------------------------------
    Mutant(
        "R1-admitted-is-not-fresh",
        "rules/resume.py",
        "    elif facts.mark_seq == 0:",
        "    elif facts.mark_seq == 0 and not facts.stored:",
        "who died between its first write and its first publish leaves a thread that alarms",
        ("tests/rules/test_resume.py::test_every_combination_of_facts",),
    ),
    Mutant(
        "R1-rows-of-an-earlier-life-alarm",
        "flows/views.py",
        "    return mark.seq == 0 and row.incarnation < mark.incarnation",
        "    return False",
        "a deletion that died before it collected keeps the id from being used again",
        (f"{_CONTRACT}test_rows_of_an_earlier_life_are_never_served[sqlite-instead-deleted]",),
    ),
    Mutant(
        "R1-tombstone-is-a-rollback",
        "flows/views.py",
        """    if mark.state == "tombstone":
        return None, ResumeFacts(stored=False, witnessed=False)
""",
        "",
        "a deleted thread is no lost thread",
        (f"{_CONTRACT}test_delete_leaves_a_tombstone_and_a_new_life_begins[sqlite-sync]",),
    ),
    # --- R2: never witnessed ----------------------------------------------------------------------
    Mutant(
        "R2-stored-is-enough",
        "rules/resume.py",
        "        if not facts.stored:\n",
        "        if not facts.stored or facts.broken is None:\n",
        "whatever verifies is trusted without a witness, so an old copy is as good as the thread",
        ("tests/rules/test_resume.py::test_every_combination_of_facts",),
    ),
    Mutant(
        "R2-rows-not-looked-for",
        "flows/views.py",
        "        return None, ResumeFacts(stored=row is not None, witnessed=False)",
        "        return None, ResumeFacts(stored=False, witnessed=False)",
        "a lost mark makes a stored thread look new",
        (f"{_ADOPT}test_a_thread_is_adopted_under_an_order_and_goes_on[sqlite-K]",),
    ),
    Mutant(
        "R2-adoption-restarts-the-fence",
        "flows/orders.py",
        "    epoch = max(r.epoch for r in chain.everything()) + 1\n",
        "    epoch = 1\n",
        "a worker from before the loss of the marks would not be fenced",
        (f"{_ADOPT}test_an_adopted_thread_keeps_its_life_and_its_fence[sqlite]",),
    ),
    Mutant(
        "R2-adoption-forgets-that-intents-were-lost",
        "flows/orders.py",
        "        session.horizon = _widest(horizon, session)\n"
        "        order = _restoring(head, session.horizon, lost=True)",
        "        session.horizon = NO_HORIZON\n"
        "        order = _restoring(head, session.horizon, lost=True)",
        "started without an intent means never sent only where no intent was lost",
        (f"{_ADOPT}test_an_open_effect_of_an_adopted_thread_may_have_happened[sqlite]",),
    ),
    # --- R3: rollback -----------------------------------------------------------------------------
    Mutant(
        "R3-one-behind-is-tolerated",
        "rules/resume.py",
        "    elif facts.head_found:\n",
        "    elif facts.head_found or (\n"
        "        facts.stored and not facts.sibling_found\n"
        "        and facts.highest_seq >= facts.mark_seq\n"
        "    ):\n",
        "a database that ends high enough passes, whether it holds the published record or not",
        ("tests/rules/test_resume.py::test_every_combination_of_facts",),
    ),
    Mutant(
        "R3-gone-is-new",
        "flows/views.py",
        "        return None, ResumeFacts(stored=False, witnessed=True, mark_seq=mark.seq)",
        "        return None, ResumeFacts(stored=False, witnessed=True)",
        "a thread whose rows are all gone starts again from nothing",
        (f"{_HARDENING}test_a_thread_whose_row_is_gone_is_not_left_out[sqlite]",),
    ),
    # --- R4: fork ---------------------------------------------------------------------------------
    Mutant(
        "R4-head-accepted-by-its-number",
        "flows/chain.py",
        "        return self.holds(self.head)\n",
        "        return self.has_sibling()\n",
        "a sibling of a fenced worker stands in for the record that was published",
        (f"{_HARDENING}test_another_record_at_the_published_height_is_a_fork[sqlite-True]",),
    ),
    Mutant(
        "R4-fork-proceeds",
        "rules/resume.py",
        '            "R4",\n            Verdict.REFUSE,\n',
        '            "R4",\n            Verdict.PROCEED,\n',
        "a fork is told and then gone on from",
        ("tests/rules/test_resume.py::test_every_combination_of_facts",),
    ),
    # --- R5: the tail -----------------------------------------------------------------------------
    Mutant(
        "R5-unpublished-checkpoint-adopted",
        "rules/chain.py",
        "ADOPTED_KINDS = frozenset({Kind.WRITES, Kind.EFFECT})",
        "ADOPTED_KINDS = frozenset({Kind.WRITES, Kind.EFFECT, Kind.CHECKPOINT})",
        "a step that nobody acknowledged becomes the past of a run that did it again",
        (
            "tests/rules/test_chain.py::test_exactly_writes_and_effects_may_be_adopted",
            (
                "tests/rules/test_chain.py::test_an_unpublished_checkpoint_of_the_newest_epoch_gives"
                "_no_way_to_an_older_tail"
            ),
        ),
    ),
    Mutant(
        "R5-tail-goes-on-behind-a-checkpoint",
        "rules/chain.py",
        "        if following.kind not in ADOPTED_KINDS:\n            return tail\n",
        "        if following.kind not in ADOPTED_KINDS:\n            at = following.link\n"
        "            continue\n",
        "effects of a step that is not adopted would count for the step before it",
        ("tests/rules/test_chain.py::test_other_kinds_end_the_tail",),
    ),
    Mutant(
        "R5-tail-of-a-retired-key-adopted",
        "flows/chain.py",
        "            self.head, [f for f in self._frames "
        "if not self._ports.seals.is_retired(f.key_id)]\n",
        "            self.head, self._frames\n",
        "whoever has the lost key writes pending results behind the head",
        (f"{_KEYS}test_after_the_drill_the_lost_key_forges_nothing_any_more[sqlite]",),
    ),
    Mutant(
        "R5-tail-kept-when-a-key-was-lost",
        "flows/maintain.py",
        "    with held(ports, thread, tail=not compromised) as (session, chain):",
        "    with held(ports, thread) as (session, chain):",
        "the record that retires a lost key vouches for what anybody could have written",
        (f"{_KEYS}test_the_drill_drops_what_anybody_with_the_key_could_have_written[sqlite]",),
    ),
    # --- R6: nothing is decoded that does not verify ----------------------------------------------
    Mutant(
        "R6-seal-not-compared",
        "rules/envelope.py",
        "    if not hmac.compare_digest(mac, expected):\n",
        "    if len(mac) != len(expected):\n",
        "whoever can write to the database can write records",
        (
            "tests/rules/test_envelope.py::test_every_flipped_bit_of_a_head_is_refused[one]",
            "tests/rules/test_envelope.py::test_another_key_is_refused",
        ),
    ),
    Mutant(
        "R6-body-not-compared",
        "rules/envelope.py",
        "            if not hmac.compare_digest(hashlib.sha256(piece).digest(), body_digest):\n",
        "            if len(piece) != length:\n",
        "a sealed head says nothing about a body that nobody compares with it",
        ("tests/rules/test_envelope.py::test_every_flipped_bit_of_a_body_is_refused[one]",),
    ),
    Mutant(
        "R6-tenant-not-bound",
        "rules/envelope.py",
        '    return tlv("rec/v1", identity.tenant, identity.thread, identity.incarnation)',
        '    return tlv("rec/v1", "", identity.thread, identity.incarnation)',
        "rows of one tenant verify as those of another",
        ("tests/rules/test_envelope.py::test_another_identity_is_refused",),
    ),
    Mutant(
        "R6-value-not-compared",
        "flows/values.py",
        "            if not hmac.compare_digest(hashlib.sha256(stored).digest(), digest):\n",
        "            if not stored:\n",
        "a large value lies in a row of its own, and that row has no seal",
        (
            (
                "tests/encryption/test_threads.py::"
                "test_every_flipped_byte_of_what_is_encrypted_is_refused[sqlite]"
            ),
        ),
    ),
    Mutant(
        "R6-retired-key-counts",
        "flows/chain.py",
        "        if self._ports.seals.is_retired(key_id) "
        "and not limits.covers(key_id, record.link.seq):\n",
        "        if key_id not in self._ports.seals.states():\n",
        "a key that was taken out of use seals on",
        (f"{_KEYS}test_case_47_a_retired_key_is_refused_by_its_id[sqlite]",),
    ),
    Mutant(
        "R6-retired-key-vouches-for-later-records",
        "rules/chain.py",
        "            limit = min(limit, record.link.seq - 1)\n",
        "",
        "what stands above the record that retires a key is not fixed by its digest",
        ("tests/rules/test_chain.py::test_a_record_vouches_for_nothing_at_or_above_itself",),
    ),
    Mutant(
        "R6-floor-of-a-retired-key-believed",
        "flows/chain.py",
        "            self._floors[key] = 1 if retired else frame.early_floor\n",
        "            self._floors[key] = frame.early_floor\n",
        "no digest covers the floor, so whoever has the lost key hides pending writes",
        (_KEYS + "test_a_frame_resealed_with_a_retired_key_hides_no_early_write[sqlite]",),
    ),
    Mutant(
        "R6-order-does-not-vouch",
        "flows/orders.py",
        "                records = _vouching(ports, chain)  # walks, and so verifies, all of it\n",
        "                records = []\n",
        "an order goes back to what a retired key sealed, and then nobody can read it",
        (
            (
                f"{_KEYS}"
                "test_what_a_key_may_have_sealed_survives_a_prune_and_an_ordered_restore[sqlite]"
            ),
        ),
    ),
    Mutant(
        "R6-ciphertext-bound-to-nothing-of-the-value",
        "rules/binding.py",
        '    return _bound(identity, "value", tag)',
        '    return _bound(identity, "value")',
        "a value that was moved under another type tag decrypts and is built as another type",
        (f"{_CIPHER}test_a_value_opens_only_under_its_tag_and_in_its_thread",),
    ),
    Mutant(
        "R6-form-inside-a-form",
        "flows/cover.py",
        "        if is_encrypted(plain):\n"
        '            raise BodyError("an encrypted form inside an encrypted form")\n',
        "",
        "what is decrypted is taken for content although it is another encrypted form",
        (f"{_CIPHER}test_an_encrypted_form_holds_no_other_encrypted_form",),
    ),
    # --- R12: busy --------------------------------------------------------------------------------
    Mutant(
        "R12-live-run-of-this-process-ended",
        "assembly.py",
        "        if not live.is_over(caller):\n            raise Busy(\n",
        "        if not live.is_over(caller) and live.control is None:\n            raise Busy(\n",
        "a second request for a thread ends the run that is still working on it",
        (f"{_CONTRACT}test_a_second_live_run_is_busy[sqlite-same process]",),
    ),
    Mutant(
        "R12-direct-call-ends-a-stream",
        "assembly.py",
        "            self._supersede(thread, replace(caller, carrier=None))\n",
        "            self._supersede(thread, caller)\n",
        "a look at a thread between two parts of its stream ends the stream",
        (f"{_HARDENING}test_a_direct_call_does_not_end_a_suspended_stream[sqlite]",),
    ),
    Mutant(
        "R12-run-inside-a-run-waits-for-itself",
        "rules/lease.py",
        "    return facts.caller_is_here and not facts.inside\n",
        "    return facts.caller_is_here\n",
        "a graph that calls itself inside a node ends the run that it is part of",
        (
            (
                "tests/graphs/test_runs.py::"
                "test_a_graph_run_in_its_own_thread_inside_a_node_is_refused_at_once"
            ),
        ),
    ),
    Mutant(
        "R12-lease-not-looked-at",
        "highwater/sql/sqlite.sql",
        "  AND state <> 'frozen'\n"
        "  AND (lease_until_ms <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)\n"
        "    OR epoch = :over_epoch)\n",
        "  AND state <> 'frozen'\n  AND (:over_epoch IS NULL OR epoch = :over_epoch)\n",
        "every acquirer gets the thread, whoever works on it",
        (f"{_CONFORMS}[lease_excludes]",),
    ),
    # --- R13: frozen ------------------------------------------------------------------------------
    Mutant(
        "R13-frozen-is-acquired",
        "highwater/sql/sqlite.sql",
        "  AND state <> 'frozen'\n",
        "",
        "acquiring sets the state to live, so an aborted thread goes on",
        (f"{_CONFORMS}[frozen]",),
    ),
    Mutant(
        "R13-abort-does-not-freeze",
        "flows/orders.py",
        "        journal.append(ports, session, [_consuming(signed)])\n"
        '        journal.publish(ports, session, free=True, clean=True, state="frozen")',
        "        journal.append(ports, session, [_consuming(signed)])\n"
        "        journal.publish(ports, session, free=True, clean=True)",
        "the decision is recorded, and the run goes on all the same",
        (f"{_ADOPT}test_an_aborted_thread_can_be_looked_at_and_not_resumed[sqlite]",),
    ),
    Mutant(
        "R13-the-trail-thaws-it",
        "rules/folding.py",
        '        if event.facts["action"] == "abort":\n',
        '        if event.facts["action"] == "aborted":\n',
        "whoever looks is told that an aborted thread may go on",
        ("tests/rules/test_events.py::test_an_abort_freezes_and_a_tombstone_ends",),
    ),
    Mutant(
        "R6-a-fact-of-the-users-own-poses-as-ours",
        "rules/events.py",
        "    if kind.startswith(OURS):\n        raise Misuse",
        "    if kind == OURS:\n        raise Misuse",
        "an application writes into the trail that an effect succeeded, sealed like a real one",
        ("tests/rules/test_events.py::test_kinds_that_may_not",),
    ),
    Mutant(
        "R13-any-publish-thaws",
        "highwater/sql/sqlite.sql",
        "  state = :state\nWHERE",
        "  state = CASE WHEN :state = 'tombstone' THEN :state ELSE 'live' END\nWHERE",
        "a state that no statement stores is no state",
        (f"{_CONFORMS}[frozen]",),
    ),
)
