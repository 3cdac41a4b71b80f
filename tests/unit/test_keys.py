"""Keys: derivation as the RFC says, files that only the owner reads, secrets that never show."""

from __future__ import annotations

import base64
import copy
import functools
import json
import os
import pickle
import stat
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot.errors import KeyMissing, Misconfigured, SurefootError
from surefoot.files import replace_private
from surefoot.keys import ENV_KEYS, Key, KeyFile, Keyring, default_key_file, hkdf

pytestmark = pytest.mark.optimized

SECRET = b"an open secret of 32 bytes, ha!!"
TOLD = base64.b64encode(SECRET).decode()
SECOND = bytes(32)


def document(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": list(keys)})


ONE = document({"id": "k1", "secret": TOLD, "state": "primary"})


@pytest.fixture(autouse=True)
def no_keys_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ENV_KEYS, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


# --- HKDF --------------------------------------------------------------------------------------

# RFC 5869, appendix A.1 to A.3: secret, salt, info, length, output.
VECTORS = {
    "A.1": (
        "0b" * 22,
        "000102030405060708090a0b0c",
        "f0f1f2f3f4f5f6f7f8f9",
        42,
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    "A.2": (
        "".join(f"{n:02x}" for n in range(0x50)),
        "".join(f"{n:02x}" for n in range(0x60, 0xB0)),
        "".join(f"{n:02x}" for n in range(0xB0, 0x100)),
        82,
        (
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c6"
            "5e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"
        ),
    ),
    "A.3": (
        "0b" * 22,
        "",
        "",
        42,
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_vectors_of_rfc_5869(name: str) -> None:
    secret, salt, info, length, output = VECTORS[name]
    made = hkdf(bytes.fromhex(secret), bytes.fromhex(info), salt=bytes.fromhex(salt), length=length)
    assert made.hex() == output


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 65, 8_160])
def test_lengths(length: int) -> None:
    made = hkdf(SECRET, b"i", length=length)
    assert len(made) == length
    assert hkdf(SECRET, b"i", length=8_160).startswith(made)


@pytest.mark.parametrize("length", [0, -1, 8_161])
def test_lengths_out_of_range(length: int) -> None:
    with pytest.raises(ValueError, match="1 to 8160"):
        hkdf(SECRET, b"", length=length)


# --- the ring ----------------------------------------------------------------------------------


def test_derived_keys_are_bound_to_everything() -> None:
    ring = Keyring([Key("a", SECRET, "primary"), Key("b", SECOND)])
    seen = {
        ring.seal_key("a", "t", "th"),
        ring.seal_key("b", "t", "th"),
        ring.seal_key("a", "t2", "th"),
        ring.seal_key("a", "t", "th2"),
        ring.seal_key("a", "tt", "h"),
        ring.purpose_key("a", "idempotency/v1", "t", "th"),
        ring.purpose_key("a", "other", "t", "th"),
    }
    assert len(seen) == 7
    assert {len(key) for key in seen} == {32}
    assert ring.seal_key("a", "t", "th") == Keyring(
        [Key("z", SECOND, "primary"), Key("a", SECRET)]
    ).seal_key("a", "t", "th")


def test_a_fixed_ring_gives_fixed_keys() -> None:
    """Golden values: other ones would refuse every stored record, or send every effect twice."""
    ring = Keyring([Key("golden", bytes(range(32)), "primary")])
    assert (
        ring.seal_key("golden", "tenant", "thread").hex()
        == "6fce08206c27f08e152f8d85d86c50c606eff000631877385b6eb13e1272b0ee"
    )
    assert (
        ring.purpose_key("golden", "idempotency/v1", "tenant", "thread").hex()
        == "42d63ea602a031aa3fab5c193b8589f0950b1fc1b68a73318c5d94caae45debc"
    )


def test_the_states() -> None:
    """Case 47: old rows verify, new rows use the new key, a retired one is refused by its id."""
    ring = Keyring(
        [Key("new", SECRET, "primary"), Key("old", SECOND), Key("gone", SECRET, "retired")]
    )
    assert ring.primary() == "new"
    assert ring.seal_key("old", "t", "th")
    for key_id, reason in (("gone", "retired"), ("never", "does not hold")):
        for _ in range(2):
            with pytest.raises(KeyMissing, match=reason) as caught:
                ring.seal_key(key_id, "t", "th")
            assert caught.value.key_id == key_id
            assert repr(key_id) in str(caught.value)
    # What was sent under a retired key may have to be sent again under the same one.
    assert ring.purpose_key("gone", "idempotency/v1", "t", "th")
    with pytest.raises(KeyMissing):
        ring.purpose_key("gone", "another/v1", "t", "th")
    with pytest.raises(KeyMissing):
        ring.purpose_key("never", "idempotency/v1", "t", "th")


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([], "exactly one key must be primary, found 0"),
        ([Key("a", SECRET)], "found 0"),
        ([Key("a", SECRET, "primary"), Key("b", SECOND, "primary")], "found 2"),
        ([Key("a", SECRET, "primary"), Key("a", SECOND)], "stands twice"),
        ([Key("", SECRET, "primary")], "1 to 255"),
        ([Key("x" * 256, SECRET, "primary")], "1 to 255"),
        ([Key("\ud800", SECRET, "primary")], "key id"),
        ([Key("a", SECRET[:31], "primary")], "at least 32 bytes"),
        ([Key("a", b"", "primary")], "at least 32 bytes"),
        ([Key("a", SECRET, "active")], "primary, enabled, retired"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_rings_that_are_refused(keys: list[Key], reason: str) -> None:
    with pytest.raises(Misconfigured, match=reason) as caught:
        Keyring(keys)
    told_nothing(caught.value)


def test_a_generated_ring_is_fresh() -> None:
    one, other = Keyring.generate(), Keyring.generate()
    assert one.primary() != other.primary()
    assert one.seal_key(one.primary(), "t", "th") != other.seal_key(other.primary(), "t", "th")
    assert Keyring.generate("mine").primary() == "mine"


# --- files -------------------------------------------------------------------------------------


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_key_file_is_for_its_owner_only(tmp_path: Path, umask: int) -> None:
    file = tmp_path / "deep" / "er" / "keys.json"
    ring = Keyring([Key("a", SECRET, "primary"), Key("b", SECOND, "retired")])
    before = os.umask(umask)
    try:
        ring.to_file(file)
    finally:
        os.umask(before)
    assert mode_of(file) == 0o600
    assert mode_of(file.parent) & 0o077 == 0
    read = Keyring.from_file(file)
    assert repr(read) == repr(ring)
    assert read.seal_key("a", "t", "th") == ring.seal_key("a", "t", "th")


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    for content in ("", ONE, "precious"):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(Misconfigured, match="exists already"):
            Keyring.generate().to_file(file)
        assert file.read_text(encoding="utf-8") == content
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "nowhere.json")
    with pytest.raises(Misconfigured, match="exists already"):
        Keyring.generate().to_file(link)
    assert not (tmp_path / "nowhere.json").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(Misconfigured) as caught:
        Keyring.generate().to_file(tmp_path / "file" / "keys.json")
    assert "keys.json" in str(caught.value)


@pytest.mark.parametrize(
    "mode", [0o640, 0o604, 0o644, 0o660, 0o666, 0o777, 0o610, 0o601, 0o400 | 0o040]
)
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "keys.json"
    file.write_text(ONE, encoding="utf-8")
    file.chmod(mode)
    with pytest.raises(Misconfigured, match="chmod 600") as caught:
        Keyring.from_file(file)
    assert f"{mode:04o}" in str(caught.value)
    file.chmod(0o400)
    assert Keyring.from_file(file).primary() == "k1"


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(KeyMissing, match="No such file") as caught:
        Keyring.from_file(tmp_path / "keys.json")
    assert "surefoot init" in str(caught.value)
    with pytest.raises(KeyMissing, match="directory"):
        Keyring.from_file(tmp_path)
    with pytest.raises(KeyMissing):
        Keyring.from_file(str(tmp_path / "a\0b"))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    binary.chmod(0o600)
    with pytest.raises(SurefootError, match="text"):
        Keyring.from_file(binary)


# --- the environment ---------------------------------------------------------------------------


def test_the_environment_holds_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (ONE, f"  {ONE}\n", "\ufeff" + ONE):
        monkeypatch.setenv(ENV_KEYS, text)
        assert Keyring.from_env().primary() == "k1"


def test_the_environment_names_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Keyring.generate("of-file").to_file(tmp_path / "keys.json")
    monkeypatch.setenv(ENV_KEYS, str(tmp_path / "keys.json"))
    assert Keyring.from_env().primary() == "of-file"
    monkeypatch.setenv("OTHER", str(tmp_path / "keys.json"))
    monkeypatch.delenv(ENV_KEYS)
    assert Keyring.from_env("OTHER").primary() == "of-file"


def test_the_file_of_init_is_found_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert default_key_file() == tmp_path / "config" / "surefoot" / "keys.json"
    with pytest.raises(KeyMissing, match="is not set and there is no key file") as caught:
        Keyring.from_env()
    assert caught.value.key_id is None
    Keyring.generate("found").to_file(default_key_file())
    assert Keyring.from_env().primary() == "found"
    monkeypatch.setenv(ENV_KEYS, "")
    assert Keyring.from_env().primary() == "found"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_key_file() == tmp_path / ".config" / "surefoot" / "keys.json"


BAD = [
    "{",
    "{}",
    '{"keys": 5}',
    '{"keys": {}}',
    '{"keys": "abc"}',
    '{"keys": null}',
    '{"keys": [5]}',
    '{"keys": [{}]}',
    '{"keys": [{"id": "a"}]}',
    document({"id": "a", "secret": 5, "state": "primary"}),
    document({"id": "a", "secret": "no base64!", "state": "primary"}),
    document({"id": "a", "secret": "é" * 44, "state": "primary"}),
    document({"id": "a", "secret": TOLD, "state": "active"}),
    document({"id": "a", "secret": TOLD, "state": None}),
    document({"id": "a", "secret": TOLD}),
    document({"id": "\ud800", "secret": TOLD, "state": "primary"}),
    f'[{{"id": "a", "secret": "{TOLD}", "state": "primary"}}]',
    f'{{"keys": [{{"id": "a", "secret": "{TOLD}", "state": "primary"}}]',
    '{"keys": ' + "[" * 100_000,
]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_documents_that_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    file.chmod(0o600)
    monkeypatch.setenv(ENV_KEYS, text)
    for read in (Keyring.from_env, lambda: Keyring.from_file(file)):
        with pytest.raises(Misconfigured) as caught:
            read()
        told_nothing(caught.value)


@pytest.mark.parametrize(
    "value", [TOLD, SECRET.hex(), f'"{TOLD}"', f"k1:{TOLD}", f"'{ONE}'", TOLD * 200]
)
def test_a_bare_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Somebody puts the key itself where its path belongs: it must not end in a log."""
    monkeypatch.setenv(ENV_KEYS, value)
    with pytest.raises(SurefootError) as caught:
        Keyring.from_env()
    told_nothing(caught.value)
    assert ENV_KEYS in str(caught.value)


@pytest.mark.parametrize(
    "value", [TOLD, SECRET.hex(), f"k1:{TOLD}", f"'{ONE}'", ONE, "\ufeff" + ONE, f" \ufeff {ONE}"]
)
def test_a_file_to_change_is_found_as_the_keys_are_read(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """What is no document names a file, and a document, also behind a mark, names none."""
    monkeypatch.setenv(ENV_KEYS, value)
    file = KeyFile.from_env()
    if ONE in value and not value.startswith("'"):
        assert file is None
        assert Keyring.from_env().primary() == "k1"
        return
    assert file is not None
    assert value not in repr(file)
    for work in (Keyring.from_file, lambda f: Keyring.change_file(f, lambda ring: ring)):
        with pytest.raises(SurefootError) as caught:
            work(file)
        told_nothing(caught.value)
        assert ENV_KEYS in str(caught.value)


def test_the_file_to_change_without_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "  ", "\ufeff"):
        monkeypatch.setenv(ENV_KEYS, value)
        file = KeyFile.from_env()
        assert file is not None
        assert file.path == str(default_key_file())


# --- changing a file ---------------------------------------------------------------------------


def test_nobody_else_changes_a_file_meanwhile(tmp_path: Path) -> None:
    """Many change it at the same moment: whoever waits goes on from what the others made."""
    file = tmp_path / "keys.json"
    Keyring.generate("first").to_file(file)
    count = 12
    start = threading.Barrier(count)

    def change(number: int) -> None:
        start.wait()
        for turn in range(3):
            name = f"k{number}-{turn}"
            Keyring.change_file(file, functools.partial(Keyring.with_new_key, key_id=name))

    workers = [threading.Thread(target=change, args=(n,)) for n in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(Keyring.from_file(file).states()) == 1 + 3 * count
    assert [found.name for found in tmp_path.iterdir()] == ["keys.json"], "something was left"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_a_file_is_locked_from_reading_it_to_replacing_it(tmp_path: Path) -> None:
    import fcntl

    file = tmp_path / "keys.json"
    Keyring.generate("first").to_file(file)
    tried: list[str] = []

    def change(ring: Keyring) -> Keyring:
        with file.open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tried.append("kept away")
        return ring.with_new_key("second")

    Keyring.change_file(file, change)
    assert tried == ["kept away"]
    with file.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_change_that_fails_leaves_the_file_and_no_lock(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    Keyring.generate("first").to_file(file)
    before = file.read_bytes()
    for _ in range(2):
        with pytest.raises(Misconfigured, match="primary"):
            Keyring.change_file(file, lambda ring: ring.with_retired("first"))
    assert file.read_bytes() == before
    with pytest.raises(KeyMissing, match="No such file"):
        Keyring.change_file(tmp_path / "none.json", lambda ring: ring)


as_root = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="only root gives files away"
)
NOBODY = 65_534


@as_root
def test_a_replaced_file_keeps_its_owner_and_group(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    Keyring.generate("first").to_file(file)
    for owner, group in ((NOBODY, NOBODY), (NOBODY, 0), (0, NOBODY), (0, 0)):
        os.chown(file, owner, group)
        before = file.stat().st_ino
        Keyring.change_file(file, lambda ring: ring.with_new_key())
        after = file.stat()
        assert after.st_ino != before, "it was not replaced"
        assert (after.st_uid, after.st_gid) == (owner, group)
        assert mode_of(file) == 0o600


@as_root
def test_a_file_of_somebody_else_is_left_to_its_owner() -> None:
    """In a folder that is ours, a file of root: the new one could not be given to root."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.json"
        Keyring.generate("first").to_file(file)
        before = file.read_bytes()
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
        try:
            with pytest.raises(Misconfigured, match="belongs to user 0 and group 0"):
                replace_private(file, "new", where="key file")
        finally:
            os.seteuid(0)
        assert file.read_bytes() == before
        assert [found.name for found in Path(folder).iterdir()] == ["keys.json"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60))
def test_any_value_gives_a_typed_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for value in (text, "{" + text, f'{{"keys": {text}}}'):
        monkeypatch.setenv(ENV_KEYS, value)
        try:
            Keyring.from_env()
        except SurefootError:
            pass


# --- secrets that never show -------------------------------------------------------------------


def told_nothing(error: BaseException) -> None:
    """No form of the secret is in the error, its traceback, its context, or its fields."""
    seen: list[str] = ["".join(traceback.format_exception(error)), repr(vars(error))]
    at: BaseException | None = error
    while at is not None:
        seen += [str(at), repr(at), repr(vars(at)), repr(at.args)]
        at = at.__context__ or at.__cause__
    for text in seen:
        for form in (TOLD, SECRET.decode(), SECRET.hex(), repr(SECRET)[2:-1]):
            assert form not in text


def test_reprs_hide_the_secret() -> None:
    key = Key("a", SECRET, "primary")
    for text in (repr(key), str(key), f"{key}", repr([key]), repr(Keyring([key]))):
        assert SECRET.decode() not in text
        assert TOLD not in text
        assert "a" in text


@pytest.mark.parametrize(
    "thing", [Key("a", SECRET, "primary"), Keyring([Key("a", SECRET, "primary")])]
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_of_it_is_pickled(thing: Any, protocol: int) -> None:
    with pytest.raises(Misconfigured, match="never pickled"):
        pickle.dumps(thing, protocol)
    with pytest.raises(Misconfigured):
        copy.deepcopy(thing)


def test_a_traceback_with_a_ring_in_it(tmp_path: Path) -> None:
    ring = Keyring([Key("a", SECRET, "primary")])
    try:
        ring.seal_key("b", "t", "th")
    except KeyMissing as error:
        told_nothing(error)
        if sys.version_info >= (3, 11):
            shown = traceback.TracebackException.from_exception(error, capture_locals=True)
            assert TOLD not in "".join(shown.format())
