"""Keys, signatures and policy: whose artifacts may run."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from nbcache.core.errors import (
    BadSignature,
    ConfigError,
    TrustError,
    Unsigned,
    UnsupportedVersion,
    UntrustedSigner,
)
from nbcache.core.key import sha256
from nbcache.core.settings import Policy
from nbcache.core.signature import Purpose, Signature, message
from nbcache.sharing.trust import Keyring, Standing, admit, short

SEED = bytes(range(32))
KEY = Ed25519PrivateKey.from_private_bytes(SEED)
PUBLIC = "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"
FINGERPRINT = "56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c"
OF_ABC = (
    "ef0c1ad3dec820b02133d7b52a5c798c51a9433966a39a73fee90685127752ef"
    "10866c83b438a9421c4c7f18c9e1234e9944e8e9da6f59074be79a4440abd301"
)
SIGNED = (
    '{"algorithm":"ed25519","format":"nbcache.signature",'
    f'"public_key":"{PUBLIC}","signature":"SIGNATURE","version":2}}'
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "config" / "nbcache"


@pytest.fixture
def keyring(folder: Path) -> Keyring:
    return Keyring(folder, clock=lambda: 1700000000.0)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- signatures ---------------------------------------------------------------------------------


def test_what_is_signed_states_purpose_and_length() -> None:
    assert message(Purpose.SNAPSHOT, b"{}") == b"18:nbcache snapshot 22:{}"
    assert message(Purpose.ARTIFACT, b"{}") == b"18:nbcache artifact 22:{}"
    assert message(Purpose.PUBLICATION, b"{}") == b"21:nbcache publication 22:{}"
    assert message(Purpose.LEASE, b"{}") == b"15:nbcache lease 22:{}"


def test_the_bytes_of_a_signature_are_frozen() -> None:
    signature = Signature(KEY.public_key().public_bytes_raw(), KEY.sign(message(Purpose.SNAPSHOT, b"abc")))
    assert signature.signature.hex() == OF_ABC  # Ed25519 has no randomness
    assert signature.encode().decode() == SIGNED.replace("SIGNATURE", OF_ABC)
    assert Signature.decode(signature.encode()) == signature
    assert signature.fingerprint == FINGERPRINT == sha256(bytes.fromhex(PUBLIC))


def test_a_signature_is_right_for_its_contents_and_no_others(keyring: Keyring) -> None:
    signature = keyring.sign(Purpose.SNAPSHOT, b"contents")
    signature.verify(Purpose.SNAPSHOT, b"contents")
    others = Keyring(keyring.folder / "of somebody else").sign(Purpose.SNAPSHOT, b"contents")
    for wrong, content in (
        (signature, b"content"),
        (signature, b"contents "),
        (replace(signature, public_key=others.public_key), b"contents"),
        (replace(signature, signature=others.signature), b"contents"),
        (replace(signature, public_key=bytes(32)), b"contents"),
    ):
        with pytest.raises(BadSignature):
            wrong.verify(Purpose.SNAPSHOT, content)


@pytest.mark.parametrize("purpose", Purpose)
def test_a_signature_for_one_purpose_is_none_for_another(keyring: Keyring, purpose: Purpose) -> None:
    signature = keyring.sign(purpose, b"contents")
    for other in Purpose:
        if other is purpose:
            signature.verify(other, b"contents")
            continue
        with pytest.raises(BadSignature):
            signature.verify(other, b"contents")


def test_a_signature_from_before_the_first_release_is_refused() -> None:
    old = SIGNED.replace("SIGNATURE", "0" * 128).replace('"version":2', '"version":1')
    with pytest.raises(BadSignature, match="cannot be read"):
        Signature.decode(old.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 5000,
        SIGNED.encode(),  # no hexadecimal digits
        SIGNED.replace("SIGNATURE", "0" * 126).encode(),
        SIGNED.replace("SIGNATURE", "0" * 128).replace("ed25519", "none").encode(),
        SIGNED.replace("SIGNATURE", "0" * 128).replace('"version":2', '"version":0').encode(),
        SIGNED.replace("SIGNATURE", "0" * 128).encode() + b" " * 5000,
    ],
)
def test_what_is_no_signature_is_refused(data: bytes) -> None:
    with pytest.raises(BadSignature):
        Signature.decode(data)


def test_a_signature_of_a_later_version_says_so() -> None:
    data = SIGNED.replace("SIGNATURE", "0" * 128).replace('"version":2', '"version":3')
    with pytest.raises(UnsupportedVersion, match="version 3"):
        Signature.decode(data.encode())


# --- one's own key ------------------------------------------------------------------------------


def test_a_key_is_made_at_the_first_signature_and_kept(keyring: Keyring, folder: Path) -> None:
    assert keyring.own() is None
    assert keyring.trusted_signers() == []
    assert not folder.exists()

    signature = keyring.sign(Purpose.SNAPSHOT, b"one")

    again = Keyring(folder)
    assert again.own() == keyring.own() == signature.fingerprint
    assert again.sign(Purpose.SNAPSHOT, b"one") == signature
    assert again.standing(signature.fingerprint) is Standing.OWN
    key = serialization.load_pem_private_key((folder / "key").read_bytes(), password=None)
    assert isinstance(key, Ed25519PrivateKey)


def test_nobody_else_can_read_the_key_whatever_the_umask(folder: Path) -> None:
    code = (
        "import os, sys; os.umask(0); from pathlib import Path; from nbcache.sharing.trust import Keyring; "
    )
    code += "ring = Keyring(Path(sys.argv[1])); ring.fingerprint(); ring.add('0' * 64)"
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True)
    assert (mode(folder), mode(folder / "key")) == (0o700, 0o600)
    assert (mode(folder / "trusted"), mode(folder / "trusted" / ("0" * 64))) == (0o700, 0o600)
    assert sorted(path.name for path in folder.iterdir()) == ["key", "trusted"]


def test_two_processes_that_make_a_key_at_once_get_the_same_one(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        rings = [Keyring(folder) for _ in range(8)]
        assert len(set(pool.map(lambda ring: ring.fingerprint(), rings))) == 1
    assert [path.name for path in folder.iterdir()] == ["key"]


@pytest.mark.parametrize("permissions", [0o640, 0o604, 0o622])
def test_a_key_that_others_can_read_or_write_is_not_used(
    keyring: Keyring, folder: Path, permissions: int
) -> None:
    keyring.fingerprint()
    (folder / "key").chmod(permissions)
    with pytest.raises(TrustError, match="others can read or write") as caught:
        Keyring(folder).fingerprint()
    assert f"chmod 600 {folder / 'key'}" in (caught.value.next_step or "")


def test_a_folder_that_others_can_enter_is_not_used(keyring: Keyring, folder: Path) -> None:
    keyring.add(FINGERPRINT)
    folder.chmod(0o755)
    with pytest.raises(TrustError, match="others can read or write"):
        keyring.standing(FINGERPRINT)


def test_no_link_or_file_stands_for_the_key_or_its_folder(
    keyring: Keyring, folder: Path, tmp_path: Path
) -> None:
    keyring.fingerprint()
    (folder / "key").rename(tmp_path / "elsewhere")
    (folder / "key").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("")
    for place in (folder, tmp_path / "file"):
        with pytest.raises(TrustError, match="another user owns this"):
            Keyring(place).fingerprint()


def test_a_file_that_is_no_such_key_says_so_and_is_kept(folder: Path) -> None:
    Keyring(folder).fingerprint()
    other = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for content in (b"", b"no key", other):
        (folder / "key").write_bytes(content)
        with pytest.raises(TrustError, match="not an Ed25519 key"):
            Keyring(folder).fingerprint()
        assert (folder / "key").read_bytes() == content


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(TrustError, match="cannot be written"):
        Keyring(tmp_path / "nbcache").fingerprint()


# --- who is trusted -----------------------------------------------------------------------------


def test_a_signer_is_trusted_until_removed(keyring: Keyring, folder: Path) -> None:
    assert keyring.standing(FINGERPRINT) is Standing.UNKNOWN
    keyring.add(short(FINGERPRINT)[:0] + FINGERPRINT.upper(), "Ada")
    assert Keyring(folder).standing(FINGERPRINT) is Standing.TRUSTED
    (signer,) = keyring.trusted_signers()
    assert (signer.fingerprint, signer.name, signer.added) == (FINGERPRINT, "Ada", 1700000000.0)
    assert keyring.remove(short(FINGERPRINT)) == signer
    assert keyring.standing(FINGERPRINT) is Standing.UNKNOWN
    assert keyring.trusted_signers() == []


def test_a_name_is_that_of_one_trusted_signer(keyring: Keyring) -> None:
    other, third = "b" * 64, "c" * 64
    keyring.add(FINGERPRINT, "Ada")
    for namesake in ("Ada", "ada", " ADA ", "\N{FULLWIDTH LATIN CAPITAL LETTER A}da"):
        with pytest.raises(ConfigError, match="another key that you trust is called") as refused:
            keyring.add(other, namesake)
        assert short(FINGERPRINT) in str(refused.value.next_step)
    assert keyring.standing(other) is Standing.UNKNOWN
    assert keyring.add(FINGERPRINT, "ada").name == "ada"
    keyring.add(other)
    keyring.add(third)  # without a name there may be many
    keyring.remove("ada")
    assert keyring.add(other, "Ada").name == "Ada"
    assert keyring.add(other).name == "Ada"  # who has a name keeps it


def test_a_signer_goes_by_the_name_that_the_user_gave_them(keyring: Keyring) -> None:
    assert keyring.introduce(keyring.fingerprint(), "ada", "engine") == "you on engine"
    assert keyring.introduce(FINGERPRINT, "ada", "engine") == f"{short(FINGERPRINT)} (says ada@engine)"
    keyring.add(FINGERPRINT, "Bob")
    assert keyring.introduce(FINGERPRINT, "ada", "engine") == "Bob (says ada@engine)"
    assert keyring.introduce(FINGERPRINT) == "Bob"


def test_a_beginning_finds_a_signer_only_where_it_tells_one(keyring: Keyring) -> None:
    keyring.add("a" * 64, "one")
    keyring.add("a" * 32 + "b" * 32, "other")
    assert keyring.find("aaaa-" * 8 + "b").name == "other"
    assert keyring.find("other") == keyring.find("aaaa-" * 8 + "b")
    for wrong, said in (
        ("a" * 32, "2 trusted signers have"),
        ("c" * 8, "no trusted signers"),
        ("", "no trusted signers"),
        ("a" * 7, "no trusted signers"),
        ("Ada", "no trusted signers"),
    ):
        with pytest.raises(ConfigError, match=said):
            keyring.find(wrong)


@pytest.mark.parametrize("text", ["", "a" * 63, "g" * 64, "../" + "a" * 61, "a" * 65])
def test_only_a_whole_fingerprint_is_trusted(keyring: Keyring, folder: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="no fingerprint"):
        keyring.add(text)
    assert not folder.exists()


def test_what_is_said_of_a_signer_and_cannot_be_read_is_no_trust(keyring: Keyring, folder: Path) -> None:
    keyring.add(FINGERPRINT)
    path = folder / "trusted" / FINGERPRINT
    for content in ("", "[]", json.dumps({"name": 1, "added": 2})):
        path.write_text(content)
        with pytest.raises(TrustError, match="cannot be read"):
            keyring.standing(FINGERPRINT)
    keyring.add(FINGERPRINT)
    assert keyring.standing(FINGERPRINT) is Standing.TRUSTED


# --- policy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Policy.STRICT, Policy.ASK])
def test_only_oneself_and_those_who_are_trusted_may_unless_the_policy_is_off(policy: Policy) -> None:
    for standing in (Standing.OWN, Standing.TRUSTED):
        admit(policy, standing, FINGERPRINT)
    with pytest.raises(UntrustedSigner, match=short(FINGERPRINT)):
        admit(policy, Standing.UNKNOWN, FINGERPRINT)
    with pytest.raises(Unsigned, match="not signed"):
        admit(policy, None)
    admit(Policy.OFF, Standing.UNKNOWN, FINGERPRINT)
    admit(Policy.OFF, None)
