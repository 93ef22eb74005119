"""Founding, joining, loading, inviting: what is kept, what is not, and what is refused."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from meshinfer.errors import UsageError
from meshinfer.link import identity, identity_file
from meshinfer.link.identity import found, invite, join, load
from meshinfer.link.join_code import JoinCode

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ODD_NAMES = ["Zoë Łukasz 山田/My Models (v2) #1 & co", "with space", "a%20b", "-dash"]


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_founder_is_loaded_as_it_was_found(tmp_path: Path) -> None:
    founder = found(tmp_path)
    assert load(tmp_path) == founder
    assert invite(tmp_path) == founder.code
    assert founder.code is not None
    assert founder.fleet == founder.code.fleet_id


def test_a_member_has_its_own_id_the_same_fleet_and_no_code(tmp_path: Path) -> None:
    code = invite_after_found(tmp_path / "a")
    member = join(tmp_path / "b", code)
    assert load(tmp_path / "b") == member
    assert (member.fleet, member.code) == (code.fleet_id, None)
    assert member.node != load(tmp_path / "a").node
    assert member.authority == load(tmp_path / "a").authority


def invite_after_found(folder: Path) -> JoinCode:
    found(folder)
    return invite(folder)


def test_the_secret_is_nowhere_on_a_members_disk(tmp_path: Path) -> None:
    code = invite_after_found(tmp_path / "a")
    join(tmp_path / "b", code)
    join(tmp_path / "b", code)
    stored = everything_in(tmp_path / "b")
    assert b"JOIN CODE" not in stored
    assert code.reveal().encode() not in stored
    assert b"JOIN CODE" in everything_in(tmp_path / "a")


def test_printing_an_identity_shows_no_secret(tmp_path: Path) -> None:
    founder = found(tmp_path)
    assert founder.code is not None
    assert founder.code.reveal() not in repr(founder)
    assert "PRIVATE" not in repr(founder)


def test_a_pc_in_a_fleet_does_not_found_another(tmp_path: Path) -> None:
    founder = found(tmp_path)
    with pytest.raises(UsageError, match=f"already in fleet {founder.fleet}"):
        found(tmp_path)
    assert load(tmp_path) == founder


def test_joining_again_keeps_the_id_and_renews(tmp_path: Path) -> None:
    code = invite_after_found(tmp_path / "a")
    first = join(tmp_path / "b", code, now=lambda: NOW)
    again = join(tmp_path / "b", code, now=lambda: NOW + timedelta(days=390))
    assert again.node == first.node
    assert again.valid_until == first.valid_until + timedelta(days=390)


def test_a_founder_that_joins_its_own_fleet_stays_a_founder(tmp_path: Path) -> None:
    founder = found(tmp_path)
    again = join(tmp_path, invite(tmp_path))
    assert (again.node, again.code) == (founder.node, founder.code)


def test_another_fleet_is_refused_unless_asked(tmp_path: Path) -> None:
    founder = found(tmp_path)
    other = JoinCode.new()
    with pytest.raises(UsageError, match=f"in fleet {founder.fleet}, the code is of fleet"):
        join(tmp_path, other)
    assert load(tmp_path) == founder
    moved = join(tmp_path, other, leave_old=True)
    assert moved.fleet == other.fleet_id
    assert moved.node != founder.node
    assert b"JOIN CODE" not in everything_in(tmp_path)


def test_a_pc_without_a_fleet_is_told_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not in a fleet. Run meshinfer init .* meshinfer join"):
        load(tmp_path)
    with pytest.raises(UsageError, match="not in a fleet"):
        invite(tmp_path)


def test_only_a_founder_can_invite(tmp_path: Path) -> None:
    join(tmp_path, JoinCode.new())
    with pytest.raises(UsageError, match="where the fleet was founded"):
        invite(tmp_path)


def test_a_founder_renews_itself_in_the_last_month_and_a_member_does_not(tmp_path: Path) -> None:
    founder = found(tmp_path / "a", now=lambda: NOW)
    member = join(tmp_path / "b", invite(tmp_path / "a"), now=lambda: NOW)
    early, late = NOW + timedelta(days=369), NOW + timedelta(days=371)
    assert load(tmp_path / "a", now=lambda: early).valid_until == founder.valid_until
    renewed = load(tmp_path / "a", now=lambda: late)
    assert (renewed.node, renewed.valid_until) == (founder.node, late + timedelta(days=400))
    assert load(tmp_path / "b", now=lambda: late).valid_until == member.valid_until


@pytest.mark.skipif(os.name == "nt", reason="Windows has no mode bits; the profile protects it")
def test_only_the_owner_may_read(tmp_path: Path) -> None:
    file = found(tmp_path / "deep" / "state").file
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_folder_name_works_with_openssl_too(tmp_path: Path, name: str) -> None:
    founder = found(tmp_path / name)
    assert load(tmp_path / name) == founder
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(founder.file)


def test_a_write_that_was_killed_leaves_the_old_membership(tmp_path: Path) -> None:
    founder = found(tmp_path)
    part = founder.file.with_name("fleet.pem.part")
    part.write_bytes(b"-----BEGIN PRIV")
    assert load(tmp_path) == founder
    join(tmp_path, invite(tmp_path))
    assert not part.exists()


def test_a_first_write_that_was_killed_leaves_no_membership(tmp_path: Path) -> None:
    part = identity_file.identity_path(tmp_path).with_name("fleet.pem.part")
    part.parent.mkdir()
    part.write_bytes(b"half")
    with pytest.raises(UsageError, match="not in a fleet"):
        load(tmp_path)
    found(tmp_path)
    assert load(tmp_path).code is not None


def test_a_file_cut_anywhere_is_damaged_and_never_a_crash(tmp_path: Path) -> None:
    file = found(tmp_path).file
    whole = file.read_bytes()
    code_at = whole.index(b"-----BEGIN MESHINFER")
    for length in range(0, code_at, 7):
        file.write_bytes(whole[:length])
        with pytest.raises(UsageError, match="is damaged"):
            load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"hello", b"-----BEGIN CERTIFICATE-----\n"]
)
def test_a_damaged_file_is_said_with_its_path(tmp_path: Path, content: bytes) -> None:
    file = found(tmp_path).file
    file.write_bytes(content)
    for call in (load, found, invite):
        with pytest.raises(UsageError, match="is damaged. Delete it, then run meshinfer join"):
            call(tmp_path)


def test_a_key_of_another_pc_is_damage(tmp_path: Path) -> None:
    mine, other = found(tmp_path / "a").file, found(tmp_path / "b").file
    marker = b"-----END PRIVATE KEY-----\n"
    swapped = other.read_bytes().split(marker)[0] + marker + mine.read_bytes().split(marker)[1]
    mine.write_bytes(swapped)
    with pytest.raises(UsageError, match="is damaged"):
        load(tmp_path / "a")


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UsageError, match="Cannot (read|write)"):
        found(tmp_path / "file")


def test_randomness_is_an_argument(tmp_path: Path) -> None:
    same = [found(tmp_path / name, random_bytes=bytes) for name in ("a", "b")]
    assert same[0].node == same[1].node
    assert identity.load(tmp_path / "a").fleet == same[1].fleet
