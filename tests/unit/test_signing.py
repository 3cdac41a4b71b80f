"""Keys of operators: which public keys count, and that only what a document says is signed."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from surefoot.errors import DecisionRefused, Misconfigured, Misuse
from surefoot.rules.decisions import Decision, SignedDecision, signed_bytes
from surefoot.signing import ENV_REVIEWERS, Reviewers, SigningKey

pytestmark = pytest.mark.optimized

P = 2**255 - 19
D = -121665 * pow(121666, P - 2, P) % P
KEY = SigningKey("ops", bytes(range(32)))
TRUSTED = Reviewers({"ops": KEY.public()})


def decision(**changes: Any) -> Decision:
    return Decision.model_validate(
        {
            "action": "restore",
            "tenant": "tenant",
            "thread": "thread",
            "incarnation": 1,
            "head_seq": 7,
            "head_digest": "0a" * 32,
            "to_seq": 3,
            "to_digest": "0b" * 32,
            "horizon": 2,
            "reason": "r",
            "nonce": "0f" * 16,
            "not_before": "2030-01-31T12:00:00Z",
            "expires": "2030-01-31T13:00:00Z",
            **changes,
        }
    )


def approval(**changes: Any) -> Decision:
    fields = {"action": "approve", "to_seq": None, "to_digest": None, "horizon": None}
    digests = dict.fromkeys(
        ("slot", "recorded_intent", "proposed_intent", "receipt_digest"), "0c" * 32
    )
    return decision(**fields, **digests, **{"outcome": "succeeded", "result": 1, **changes})


# --- weak public keys --------------------------------------------------------------------------


def added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Edwards addition (RFC 8032, section 5.1.4, in affine coordinates)."""
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2
    return (
        (x1 * y2 + x2 * y1) * pow(1 + product, P - 2, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - product, P - 2, P) % P,
    )


def points_of(y: int) -> list[tuple[int, int]]:
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    root = pow(square, (P + 3) // 8, P)
    if root * root % P != square:
        root = root * pow(2, (P - 1) // 4, P) % P
    if root * root % P != square:
        return []
    return [(root, y), (-root % P, y)]


def order_divides_8(point: tuple[int, int]) -> bool:
    for _ in range(3):
        point = added(point, point)
    return point == (0, 1)


def weak_encodings() -> list[bytes]:
    """Every 32 bytes that name a point of small order, found by calculation and not by a list.

    Points of order 8 come from halving those of order 4, so their y is one of two values and
    their opposites; y = 0, 1 and -1 are the orders 4, 1 and 2.
    """
    ys = {0, 1, P - 1}
    # Doubling (x, y) gives y' = 0 where y*y = -x*x; on the curve that is D*y^4 + 2*y*y - 1 = 0.
    for root in square_roots(1 + D):
        ys.update(square_roots((root - 1) * pow(D, P - 2, P)))
    found = []
    for y in ys:
        if any(order_divides_8(point) for point in points_of(y)):
            for written in (y, y + P):
                if written < 2**255:
                    found += [
                        written.to_bytes(32, "little"),
                        (written | 1 << 255).to_bytes(32, "little"),
                    ]
    return sorted(set(found))


def square_roots(square: int) -> list[int]:
    square %= P
    root = pow(square, (P + 3) // 8, P)
    for candidate in (root, root * pow(2, (P - 1) // 4, P) % P):
        if candidate * candidate % P == square:
            return [candidate, -candidate % P]
    return []


WEAK = weak_encodings()


def test_there_are_eight_small_points_and_six_other_spellings_of_them() -> None:
    canonical = [
        raw
        for raw in WEAK
        if int.from_bytes(raw, "little") % 2**255 < P
        and not (raw[31] & 0x80 and int.from_bytes(raw, "little") % 2**255 in (1, P - 1))
    ]
    assert (len(canonical), len(WEAK)) == (8, 14)


@pytest.mark.parametrize("raw", WEAK, ids=bytes.hex)
def test_a_key_of_small_order_is_no_reviewer(raw: bytes) -> None:
    with pytest.raises(Misconfigured, match="anybody can sign") as caught:
        Reviewers({"op-1": raw.hex()})
    assert "reviewers['op-1']" in str(caught.value)


def test_a_small_key_would_have_let_anybody_sign() -> None:
    """The fault is real: a signature that nobody made matches under a placeholder of zeros."""
    key = Ed25519PublicKey.from_public_bytes(bytes(32))
    forged = b"\x01" + bytes(63)
    for number in range(200):
        document = signed_bytes(decision(nonce=f"{number:032x}"), "op-1")
        try:
            key.verify(forged, document)
        except InvalidSignature:
            continue
        return
    raise AssertionError("no forgery matched in 200 tries")


@pytest.mark.parametrize("y", [P, P + 1, P + 3, 2**255 - 1])
def test_a_key_that_is_not_canonical_is_no_reviewer(y: int) -> None:
    for sign in (0, 1 << 255):
        with pytest.raises(Misconfigured, match="anybody can sign"):
            Reviewers({"op-1": (y | sign).to_bytes(32, "little").hex()})


def test_honest_keys_are_reviewers() -> None:
    for number in range(64):
        key = SigningKey.generate(f"op-{number}")
        Reviewers({key.key_id: key.public()}).check(key.sign(decision()))


def test_a_placeholder_is_no_private_key(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="placeholder"):
        SigningKey("ops", bytes(32))
    file = tmp_path / "op.json"
    file.write_text(json.dumps({"signing_key": {"id": "ops", "secret": "00" * 32}}))
    file.chmod(0o600)
    with pytest.raises(Misconfigured, match="placeholder"):
        SigningKey.from_file(file)


# --- where reviewers come from -----------------------------------------------------------------


@pytest.mark.parametrize("value", ["5e" * 32, "MC4CAQAwBQYDK2VwBCIEIEU", '["5e5e5e"]', "a\x1bb"])
def test_a_bare_private_key_among_the_reviewers_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(ENV_REVIEWERS, value)
    with pytest.raises(Misconfigured) as caught:
        Reviewers.from_env()
    assert value not in "".join(traceback.format_exception(caught.value))
    assert ENV_REVIEWERS in str(caught.value)


def test_reviewers_behind_a_byte_order_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = json.dumps({"ops": KEY.public()})
    monkeypatch.setenv(ENV_REVIEWERS, "\ufeff" + text)
    Reviewers.from_env().check(KEY.sign(decision()))
    (tmp_path / "reviewers.json").write_text(text)
    monkeypatch.setenv(ENV_REVIEWERS, str(tmp_path / "reviewers.json"))
    Reviewers.from_env().check(KEY.sign(decision()))


# --- only what the document says is signed -----------------------------------------------------


@pytest.mark.parametrize(
    ("honest", "changes"),
    [
        (decision(), {"to_seq": 0}),
        (decision(), {"to_digest": "0" * 64}),
        (decision(), {"thread": ""}),
        (decision(), {"to_seq": 8}),
        (approval(), {"result": {1, 2}}),
        (approval(), {"result": {1: "a", "1": "b"}}),
        (approval(), {"slot": None}),
    ],
)
def test_a_copy_that_breaks_a_rule_is_not_signed(honest: Decision, changes: dict[str, Any]) -> None:
    TRUSTED.check(KEY.sign(honest))
    with pytest.raises(Misuse):
        KEY.sign(honest.model_copy(update=changes))


def test_what_is_signed_is_what_the_document_says() -> None:
    signed = KEY.sign(approval().model_copy(update={"result": (1, (2,))}))
    assert signed.decision.result == [1, [2]]
    assert SignedDecision.parse(signed.render()).decision.result == signed.decision.result


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (decision().model_copy(update={"to_seq": 0}), "to_digest"),
        (approval().model_copy(update={"result": (1, 2)}), "in memory"),
    ],
)
def test_a_signature_over_no_decision_is_refused(made: Decision, reason: str) -> None:
    """Signed by hand with the real key: the signature matches, the rules do not."""
    signature = KEY._key.sign(signed_bytes(made, "ops"))
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(KEY.public())).verify(
        signature, signed_bytes(made, "ops")
    )
    signed = SignedDecision.model_construct(decision=made, key_id="ops", signature=signature.hex())
    with pytest.raises(DecisionRefused, match=reason):
        TRUSTED.check(signed)
