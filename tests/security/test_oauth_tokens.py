"""Tokens of SASL/OAUTHBEARER: good ones of each algorithm, and every forgery that is known."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.security.oauth_keys import ALGORITHMS, MAX_KEYS, Key, read_keys
from kbroker.security.oauth_tokens import (
    MAX_TOKEN_BYTES,
    Bearer,
    TokenRefused,
    TokenRules,
    UnknownKey,
    check_token,
    read_token,
)
from tests.security.tokens import (
    AUDIENCE,
    ISSUER,
    NOW_S,
    claims,
    ec,
    encoded,
    key_set,
    public,
    rsa,
    signed,
    signed_with_public_key,
    unsigned,
)

RULES = TokenRules(audiences=(AUDIENCE, "other"), issuer=ISSUER)
CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}


def issuer_keys() -> tuple[Key, ...]:
    rows = [public(rsa("a")), public(rsa("b")), *(public(ec(name, name)) for name in CURVES.values())]
    return read_keys(key_set(*rows))


def check(text: str, rules: TokenRules = RULES, now_s: float = NOW_S, keys: Any = None) -> Bearer:
    return check_token(read_token(text), issuer_keys() if keys is None else keys, rules, now_s)


def refusal(text: str, rules: TokenRules = RULES, now_s: float = NOW_S, keys: Any = None) -> str:
    with pytest.raises(TokenRefused) as caught:
        check(text, rules, now_s, keys)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_good_token(algorithm: str) -> None:
    key = ec(CURVES[algorithm], CURVES[algorithm]) if algorithm in CURVES else rsa("a")
    assert check(signed(key, claims(), algorithm)) == ("alice", 300_000)
    # Without a key id all keys are tried.
    assert check(signed(key, claims(), algorithm, kid=None)) == ("alice", 300_000)


def test_only_asymmetric_algorithms() -> None:
    assert not {name for name in ALGORITHMS if name.startswith("HS") or name == "none"}


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", "HS256", "HS512", "EdDSA", "RS1", None, 1, []]
)
def test_other_algorithms_are_refused(algorithm: Any) -> None:
    header = {"alg": algorithm, "kid": "a"}
    good = signed(rsa("a"), claims()).rsplit(".", 1)[1]
    assert "not allowed" in refusal(unsigned(claims(), header, good))


def test_a_token_without_a_signature_is_refused() -> None:
    for algorithm in ("none", "RS256"):
        assert refusal(unsigned(claims(), {"alg": algorithm, "kid": "a"})) == (
            "the token is no signed JSON Web Token"
        )


def test_a_token_signed_with_the_public_key_is_refused() -> None:
    assert "not allowed" in refusal(signed_with_public_key(rsa("a"), claims()))


def test_a_symmetric_key_of_the_set_checks_nothing() -> None:
    secret = {"kty": "oct", "kid": "s", "k": encoded(b"a secret of 32 bytes for an HMAC")}
    with pytest.raises(ValueError, match="no RSA or EC key"):
        read_keys(key_set(secret))
    assert [key.kid for key in read_keys(key_set(secret, public(rsa("a"))))] == ["a"]


def test_a_wrong_key_is_refused() -> None:
    wrong = rsa("wrong")
    assert refusal(signed(wrong, claims(), kid="a")) == "the token has a wrong signature"
    assert refusal(signed(wrong, claims(), kid=None)) == "the token has a wrong signature"
    with pytest.raises(UnknownKey):
        check(signed(wrong, claims()))


def test_a_key_that_the_token_brings_is_not_used() -> None:
    wrong = rsa("wrong")
    token = signed(wrong, claims(), kid="a", jwk=public(wrong), jku="https://wrong.example.com/keys")
    assert refusal(token) == "the token has a wrong signature"


def test_a_changed_payload_is_refused() -> None:
    head, _, signature = signed(rsa("a"), claims()).split(".")
    assert refusal(f"{head}.{encoded(claims(sub='admin'))}.{signature}") == "the token has a wrong signature"


def test_a_key_checks_only_its_own_algorithms() -> None:
    only_rs256 = read_keys(key_set(public(rsa("a"), alg="RS256")))
    assert check(signed(rsa("a"), claims()), keys=only_rs256).name == "alice"
    assert "not allowed for its key" in refusal(signed(rsa("a"), claims(), "PS256"), keys=only_rs256)
    assert "not allowed for its key" in refusal(signed(ec("P-256"), claims(), "ES256", kid="a"))


@pytest.mark.parametrize(
    "row",
    [
        public(rsa("a"), n=encoded(b"\xff" * 128)),
        public(rsa("a"), n=encoded(b"\xff" * 1025)),
        public(rsa("a"), use="enc"),
        public(rsa("a"), key_ops=["encrypt"]),
        public(rsa("a"), alg="HS256"),
        public(rsa("a"), alg=["RS256"]),
        public(rsa("a"), kid=7),
        public(rsa("a"), n="!"),
        public(rsa("a"), n=None),
        public(ec("k", "secp256k1")),
        public(ec("P-256"), x="AAAA"),
        {"kty": "RSA", "kid": "a"},
        {"kty": ["RSA"]},
        {},
        7,
    ],
    ids=repr,
)  # fmt: skip
def test_keys_of_no_use_are_left_out(row: Any) -> None:
    with pytest.raises(ValueError, match="no RSA or EC key"):
        read_keys(key_set(row))


def test_the_private_part_of_a_key_is_dropped() -> None:
    (key,) = read_keys(key_set(rsa("a").as_dict(private=True)))
    assert not key.public.is_private
    assert "public" not in repr(key)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("AQAB"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
ROWS = st.sampled_from([public(rsa("a")), public(ec("P-256")), {}])
PARAMETERS = ["kty", "use", "key_ops", "alg", "kid", "n", "e", "crv", "x", "y", "d", "oth", "x5c", "x5u"]


@settings(deadline=None)
@given(row=ROWS, changed=st.dictionaries(st.sampled_from(PARAMETERS), JSON))
def test_no_key_set_is_more_than_refused(row: dict[str, Any], changed: dict[str, Any]) -> None:
    with suppress(ValueError):
        assert all(key.algorithms <= ALGORITHMS for key in read_keys(key_set({**row, **changed})))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"keys": {}}', b"\xff", b'{"keys": [], "keys": []}', b"[" * 100_000],
)
def test_what_is_no_key_set(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|key"):
        read_keys(text)


def test_key_sets_are_bounded_and_without_doubles() -> None:
    with pytest.raises(ValueError, match="more than 64"):
        read_keys(key_set(*[public(rsa("a"))] * (MAX_KEYS + 1)))
    with pytest.raises(ValueError, match="two keys have the same kid"):
        read_keys(key_set(public(rsa("a")), public(rsa("b"), kid="a")))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": NOW_S - 31}, "has expired"),
        ({"exp": None}, "no usable exp"),
        ({"exp": "never"}, "no usable exp"),
        ({"exp": True}, "no usable exp"),
        ({"exp": -1}, "no usable exp"),
        ({"exp": 1e300}, "no usable exp"),
        ({"iat": None}, "no usable iat"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"nbf": "now"}, "no usable nbf"),
        ({"aud": "third"}, "another audience"),
        ({"aud": ["third", "fourth"]}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": {"kbroker": 1}}, "malformed aud"),
        ({"aud": [1]}, "malformed aud"),
        ({"iss": "https://wrong.example.com"}, "another issuer"),
        ({"iss": [ISSUER]}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"sub": None}, "no usable name"),
        ({"sub": ""}, "no usable name"),
        ({"sub": 7}, "no usable name"),
        ({"sub": "a" * 1025}, "no usable name"),
        ({"sub": "alice "}, "spaces around it"),
        ({"sub": "ali\nce"}, "control characters"),
        ({"scope": 7}, "malformed scope"),
        ({"scope": ["a", ""]}, "malformed scope"),
    ],
)
def test_claims_that_are_refused(changed: dict[str, Any], reason: str) -> None:
    assert reason in refusal(signed(rsa("a"), claims(**changed)))


@pytest.mark.parametrize(
    ("changed", "bearer"),
    [
        ({"exp": NOW_S + 0.5}, ("alice", 500)),
        ({"exp": NOW_S - 10}, ("alice", 20_000)),
        ({"exp": 2**52}, ("alice", 2**31 * 1000)),
        ({"nbf": NOW_S + 29}, ("alice", 300_000)),
        ({"aud": ["third", "other"]}, ("alice", 300_000)),
        ({"scope": "a b"}, ("alice", 300_000)),
        ({"scope": ["a", "b"]}, ("alice", 300_000)),
        ({"sub": "Alice O'Hara"}, ("Alice O'Hara", 300_000)),
    ],
)
def test_claims_that_are_taken(changed: dict[str, Any], bearer: tuple[str, int]) -> None:
    assert check(signed(rsa("a"), claims(**changed))) == bearer


def test_without_an_expected_audience_a_token_must_not_have_one() -> None:
    rules = TokenRules()
    assert "expected.audience is not set" in refusal(signed(rsa("a"), claims()), rules)
    assert check(signed(rsa("a"), claims(aud=None, iss="any")), rules).name == "alice"


def test_the_name_may_be_in_another_claim() -> None:
    rules = TokenRules(audiences=(AUDIENCE,), sub_claim="client_id", scope_claim="scp")
    assert check(signed(rsa("a"), claims(client_id="worker", scp=["x"])), rules).name == "worker"
    assert "no usable name" in refusal(signed(rsa("a"), claims()), rules)


def test_a_claim_that_comes_twice_is_refused() -> None:
    double = json.dumps(claims())[:-1] + ', "sub": "admin"}'
    assert refusal(signed(rsa("a"), double.encode())) == "the token has a malformed payload"
    head = encoded(b'{"alg": "none", "alg": "RS256", "kid": "a"}')
    _, payload, signature = signed(rsa("a"), claims()).split(".")
    assert refusal(f"{head}.{payload}.{signature}") == "the token has a malformed header"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 10_000])
def test_numbers_that_are_none(number: str) -> None:
    text = json.dumps(claims(exp=0)).replace('"exp": 0', f'"exp": {number}')
    assert "the token has" in refusal(signed(rsa("a"), text.encode()))


def test_extensions_that_must_be_understood_are_refused() -> None:
    for header in ({"crit": ["exp"]}, {"b64": False}):
        text = unsigned(claims(), {"alg": "RS256", "kid": "a", **header}, "AAAA")
        assert "must be understood" in refusal(text)


HEADERS = ["jku", "jwk", "kid", "x5u", "x5c", "x5t", "x5t#S256", "typ", "cty", "other"]


@settings(deadline=None)
@given(header=st.dictionaries(st.sampled_from(HEADERS), JSON))
def test_no_header_is_more_than_refused(header: dict[str, Any]) -> None:
    """With a right signature, so that every check is reached."""
    head = encoded({"alg": "RS256", "kid": "a", **header})
    content = f"{head}.{encoded(claims())}"
    mac = rsa("a").private_key.sign(content.encode(), padding.PKCS1v15(), hashes.SHA256())
    with suppress(TokenRefused):
        assert check(f"{content}.{encoded(mac)}") == ("alice", 300_000)


def test_the_size_is_bounded() -> None:
    assert check(signed(rsa("a"), claims(more="x" * 10_000))).name == "alice"
    assert check(signed(rsa("a"), claims(), x5c=["x" * 4000])).name == "alice"
    assert refusal(signed(rsa("a"), claims(more="x" * MAX_TOKEN_BYTES))).startswith("the token is larger")


@given(text=st.text(alphabet="eyJhbGciOi.-_=\0 é", max_size=200))
def test_what_is_no_token_is_refused(text: str) -> None:
    refusal(text)


@settings(deadline=None)
@given(at=st.integers(min_value=0), letter=st.sampled_from("AZaz09-_.="))
def test_a_changed_letter_is_refused_or_means_the_same(at: int, letter: str) -> None:
    token = signed(rsa("a"), claims())
    at %= len(token)
    changed = token[:at] + letter + token[at + 1 :]
    with suppress(TokenRefused):
        assert check(changed) == ("alice", 300_000)
        assert changed[: token.rindex(".")] == token[: token.rindex(".")]
