"""Who vouches for a manifest: members of this fleet, for this manifest, and nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from meshinfer.core.ids import Digest, NodeId
from meshinfer.core.seal import Seal
from meshinfer.errors import TrustRefused
from meshinfer.link.identity import found, join
from meshinfer.link.seal import Sealer
from meshinfer.link.trust import Trust

STAGE = Digest("a" * 64)


@pytest.fixture(scope="module")
def founder(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust(found(tmp_path_factory.mktemp("founder")))


@pytest.fixture(scope="module")
def member(founder: Trust, tmp_path_factory: pytest.TempPathFactory) -> Trust:
    code = founder.identity.code
    assert code is not None
    return Trust(join(tmp_path_factory.mktemp("member"), code))


def test_every_member_can_check_what_another_signed(founder: Trust, member: Trust) -> None:
    assert Sealer(member).signer(STAGE, Sealer(founder).seal(STAGE)) == founder.node
    assert Sealer(founder).signer(STAGE, Sealer(member).seal(STAGE)) == member.node


def test_a_seal_is_for_one_manifest(founder: Trust, member: Trust) -> None:
    seal = Sealer(founder).seal(STAGE)
    with pytest.raises(TrustRefused, match="not signed by a PC of this fleet"):
        Sealer(member).signer(Digest("b" * 64), seal)


def test_another_fleet_vouches_for_nothing_here(founder: Trust, tmp_path: Path) -> None:
    stranger = Trust(found(tmp_path))
    with pytest.raises(TrustRefused, match="not signed by a PC of this fleet"):
        Sealer(founder).signer(STAGE, Sealer(stranger).seal(STAGE))


def test_a_member_cannot_sign_in_the_name_of_another(founder: Trust, member: Trust) -> None:
    theirs = founder.identity.leaf.public_bytes(Encoding.DER)
    forged = replace(Sealer(member).seal(STAGE), certificate=theirs)
    with pytest.raises(TrustRefused, match="not signed by a PC of this fleet"):
        Sealer(member).signer(STAGE, forged)


def test_a_revoked_pc_vouches_for_nothing_any_more(founder: Trust, member: Trust) -> None:
    seal = Sealer(member).seal(STAGE)

    def refuses(node: NodeId) -> bool:
        return node == member.node

    with pytest.raises(TrustRefused, match="was revoked"):
        Sealer(Trust(founder.identity, refuses=refuses)).signer(STAGE, seal)


def test_the_fleets_own_certificate_is_no_member(founder: Trust) -> None:
    seal = Sealer(founder).seal(STAGE)
    authority = founder.identity.authority.public_bytes(Encoding.DER)
    with pytest.raises(TrustRefused):
        Sealer(founder).signer(STAGE, replace(seal, certificate=authority))


@given(certificate=st.binary(max_size=5000), signature=st.binary(max_size=100))
def test_rubbish_is_refused_by_name(founder: Trust, certificate: bytes, signature: bytes) -> None:
    with pytest.raises(TrustRefused):
        Sealer(founder).signer(STAGE, Seal(certificate, signature))


@given(place=st.integers(0, 63), bit=st.integers(0, 7))
def test_one_changed_bit_of_a_signature_is_noticed(founder: Trust, place: int, bit: int) -> None:
    seal = Sealer(founder).seal(STAGE)
    changed = bytearray(seal.signature)
    changed[place] ^= 1 << bit
    with pytest.raises(TrustRefused):
        Sealer(founder).signer(STAGE, replace(seal, signature=bytes(changed)))
