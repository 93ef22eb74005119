"""The authority is the same everywhere, and its certificates say what they must."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from meshinfer.errors import UsageError
from meshinfer.link.authority import Authority, host_name, node_id
from meshinfer.link.join_code import JoinCode

CODE = JoinCode(bytes(range(32)))
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def test_the_certificate_is_the_same_bytes_on_every_pc_and_version() -> None:
    data = Authority(CODE).certificate.public_bytes(Encoding.DER)
    assert data == Authority(JoinCode.parse(CODE.reveal())).certificate.public_bytes(Encoding.DER)
    # Changing this digest locks every existing fleet out: it needs a new join code version.
    assert hashlib.sha256(data).hexdigest() == (
        "68eae3d345c4551f96716c7dde073d5812c497ce2204e80396bee7388b9b0c46"
    )


def test_another_code_is_another_authority() -> None:
    other = Authority(JoinCode(bytes(32))).certificate
    assert other.public_key() != Authority(CODE).certificate.public_key()


def test_a_node_id_is_52_characters_of_the_keys_hash() -> None:
    node = node_id(KEY.public_key())
    assert node == "gopc76ixmmcqpnveeo244ccofbor7js5soz6e6tbsxj3x26jvyrq"
    assert len(host_name(node).split(".")[0]) == 52


def test_a_leaf_names_its_key_and_lasts_400_days_from_a_date_before_all_clocks() -> None:
    authority = Authority(CODE)
    leaf = authority.issue(KEY.public_key(), NOW)
    leaf.verify_directly_issued_by(authority.certificate)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [host_name(node_id(KEY.public_key()))]
    assert leaf.not_valid_before_utc == datetime(2020, 1, 1, tzinfo=UTC)
    assert leaf.not_valid_after_utc == NOW + timedelta(days=400)


def test_a_leaf_cannot_sign() -> None:
    leaf = Authority(CODE).issue(KEY.public_key(), NOW)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_a_pc_whose_clock_lost_its_battery_is_told() -> None:
    with pytest.raises(UsageError, match="clock of this PC says 1970-01-01"):
        Authority(CODE).issue(KEY.public_key(), datetime(1970, 1, 1, tzinfo=UTC))
