"""What a SASL listener answers in each state of a connection: before and after SaslHandshake,
while it authenticates, and on listeners or connections that need no authentication."""

from __future__ import annotations

import struct

from tests.differential.scram import SHA_256, ScramClient, create
from tests.differential.scripts.base_other import framed, header
from tests.differential.secured import ALICE, BOB, SASL, Secured, password_of, plain_token, secured_script
from tests.differential.transcript import Json

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36
MAX_FRAME = 524288
"""`sasl.server.max.receive.size` by default."""


def listed(answer: Json) -> Json:
    """Rows of ApiVersions are compared elsewhere."""
    return {"error_code": answer["error_code"], "lists_apis": bool(answer["api_keys"])}


def versions(s: Secured, version: int = 3, *, on: str = SASL, name: str = "differential") -> None:
    software = {"client_software_name": name, "client_software_version": "1"} if version >= 3 else {}
    s.call("api_versions", version, on=on, keep=listed, **software)


def error_in_version_0(frame: bytes | None) -> int | None:
    """The code of an ApiVersions answer that comes in version 0."""
    if frame is None:
        return None
    (code,) = struct.unpack_from(">h", frame, 4)
    return int(code)


@secured_script()
def api_versions_first(s: Secured) -> None:
    for version in range(5):
        on = f"{SASL}/{version}"
        versions(s, version, on=on)
        s.handshake(on=on)
        s.authenticate(s.token(), on=on)
        versions(s, version, on=on)


@secured_script()
def rows_before_and_after_are_the_same(s: Secured) -> None:
    software = {"client_software_name": "differential", "client_software_version": "1"}
    before = s.prepare("api_versions", 3, on=SASL, **software)
    after = s.prepare("api_versions", 3, on=BOB, **software)
    plain = s.prepare("api_versions", 3, on="a", **software)
    rows = [{(row.api_key, row.min_version, row.max_version) for row in answer.api_keys}
            for answer in (before, after, plain)]  # fmt: skip
    s.note("the same rows", [rows[0] == rows[1], rows[1] == rows[2]])
    security = (17, 29, 30, 31, 36, 50, 51)
    s.note("APIs of security", sorted(list(row) for row in rows[0] if row[0] in security))


@secured_script()
def api_versions_that_do_not_exist(s: Secured) -> None:
    frame = framed(header(API_VERSIONS, 99, flexible=True))
    s.note("code", error_in_version_0(s.frame("ApiVersions 99", frame)))
    versions(s)
    s.handshake()
    s.authenticate(s.token())


@secured_script()
def software_that_is_refused(s: Secured) -> None:
    versions(s, name="a b")
    versions(s, name="")
    versions(s)
    s.handshake()
    s.authenticate(s.token())


@secured_script()
def api_versions_twice(s: Secured) -> None:
    versions(s)
    versions(s)
    s.ended()


@secured_script()
def api_versions_after_the_handshake(s: Secured) -> None:
    for version in range(6):
        on = f"{SASL}/{version}"
        s.handshake(on=on)
        versions(s, version, on=on)
        s.ended(on)


@secured_script()
def api_versions_that_do_not_exist_after_the_handshake(s: Secured) -> None:
    s.handshake()
    frame = framed(header(API_VERSIONS, 99, flexible=True))
    s.note("code", error_in_version_0(s.frame("ApiVersions 99", frame)))
    s.ended()


@secured_script()
def handshakes_of_known_mechanisms(s: Secured) -> None:
    for version in (0, 1):
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            s.handshake(mechanism, version, on=f"{SASL}/{version}{mechanism}")


@secured_script()
def handshakes_of_unknown_mechanisms(s: Secured) -> None:
    for version in (0, 1):
        for mechanism in ("plain", "", "GSSAPI", "OAUTHBEARER", "SCRAM-SHA-1", "PLAIN "):
            on = f"{SASL}/{version}{mechanism}"
            s.handshake(mechanism, version, on=on)
            s.ended(on)


@secured_script()
def versions_of_the_handshake_that_do_not_exist(s: Secured) -> None:
    for version in (2, 99, -1):
        on = f"{SASL}/{version}"
        s.frame(f"SaslHandshake {version}", framed(header(SASL_HANDSHAKE, version) + b"\x00\x05PLAIN"), on=on)
        s.ended(on)


@secured_script()
def handshake_twice(s: Secured) -> None:
    for first, second in ((0, 1), (1, 0), (1, 1)):
        on = f"{SASL}/{first}{second}"
        s.handshake(version=first, on=on)
        s.handshake(version=second, on=on)
        s.ended(on)


@secured_script()
def other_requests_before_the_handshake(s: Secured) -> None:
    s.call("metadata", 1, on=f"{SASL}/metadata", topics=())
    s.call("metadata", 12, on=f"{SASL}/new metadata", topics=(), allow_auto_topic_creation=False,
           include_topic_authorized_operations=False)  # fmt: skip
    s.call("find_coordinator", 4, on=f"{SASL}/coordinator", key_type=0, coordinator_keys=["g"])
    s.call("list_groups", 4, on=f"{SASL}/groups", states_filter=())
    s.call("produce", 9, on=f"{SASL}/produce", transactional_id=None, acks=-1, timeout=1000, topic_data=())
    for version in (0, 1, 2):
        s.authenticate(s.token(), version, on=f"{SASL}/authenticate{version}")


@secured_script()
def other_requests_after_api_versions(s: Secured) -> None:
    versions(s, on=f"{SASL}/metadata")
    s.call("metadata", 1, on=f"{SASL}/metadata", topics=())
    versions(s, on=f"{SASL}/authenticate")
    s.authenticate(s.token(), on=f"{SASL}/authenticate")


@secured_script()
def other_requests_instead_of_a_token(s: Secured) -> None:
    def asked(name: str, api: str, version: int, **values: object) -> None:
        on = f"{SASL}/{name}"
        s.handshake(on=on)
        s.call(api, version, on=on, **values)
        s.ended(on)

    asked("metadata", "metadata", 1, topics=[{"name": "t"}])
    asked("coordinator", "find_coordinator", 3, key="g", key_type=0)
    asked("coordinators", "find_coordinator", 4, key_type=0, coordinator_keys=["g"])
    asked("groups", "list_groups", 4, states_filter=())
    asked("describe", "describe_groups", 5, groups=["g"], include_authorized_operations=False)
    asked("heartbeat", "heartbeat", 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None)
    asked("init", "init_producer_id", 4, transactional_id=None, transaction_timeout=1000)
    asked("cluster", "describe_cluster", 1, include_cluster_authorized_operations=False)


@secured_script()
def requests_instead_of_a_second_token(s: Secured) -> None:
    """While SCRAM waits for the client's last message."""
    create(s, s.user("dave"), SHA_256)
    for name in ("metadata", "versions", "handshake"):
        on = f"{SASL}/{name}"
        s.handshake(SHA_256, on=on)
        s.authenticate(ScramClient(SHA_256, s.user("dave")).first(), on=on)
        if name == "metadata":
            s.call("metadata", 1, on=on, topics=())
        elif name == "versions":
            versions(s, on=on)
        else:
            s.handshake(on=on)
        s.ended(on)


@secured_script()
def apis_that_do_not_exist(s: Secured) -> None:
    for after in (False, True):
        for key in (999, -1):
            on = f"{SASL}/{after}{key}"
            if after:
                s.handshake(on=on)
            s.frame(f"API {key}, {'after' if after else 'before'} the handshake", framed(header(key, 0)), on)


@secured_script()
def authentication_in_each_version(s: Secured) -> None:
    for version in (0, 1, 2):
        on = f"{SASL}/{version}"
        s.handshake(on=on)
        s.authenticate(s.token(), version, on=on)
        s.works(on)
        bad = f"{SASL}/bad{version}"
        s.handshake(on=bad)
        s.authenticate(plain_token(s.user(BOB), "wrong"), version, on=bad)
        s.ended(bad)


@secured_script()
def versions_of_authentication_that_do_not_exist(s: Secured) -> None:
    for version in (3, 99):
        on = f"{SASL}/{version}"
        s.handshake(on=on)
        body = header(SASL_AUTHENTICATE, version, flexible=True) + b"\x01\x00"
        s.frame(f"SaslAuthenticate {version}", framed(body), on)
        s.ended(on)


@secured_script()
def on_a_plain_listener(s: Secured) -> None:
    s.handshake(on="a")
    s.handshake(version=0, on="a")
    for version in (0, 1, 2):
        s.authenticate(s.token(), version, on="a")
    s.handshake("nonsense", on="a")
    s.works("a")


@secured_script()
def after_authentication(s: Secured) -> None:
    for on in (BOB, ALICE):
        s.handshake(on=on)
        s.handshake(version=0, on=on)
        for version in (0, 1, 2):
            s.authenticate(s.token(), version, on=on)
        s.authenticate(b"", on=on)
        s.works(on)


@secured_script()
def raw_tokens(s: Secured) -> None:
    """After SaslHandshake v0 a token is a frame of its own, without a header."""
    s.handshake(version=0)
    answer = s.frame("a right token", framed(s.token()))
    s.note("its answer", answer is not None and answer.decode())
    s.works(SASL)
    versions(s)
    for name, token in (
        ("wrong", plain_token(s.user(BOB), "wrong")),
        ("one part", b"nonsense"),
        ("empty", b""),
    ):
        on = f"{SASL}/{name}"
        s.handshake(version=0, on=on)
        s.frame(f"a token: {name}", framed(token), on)


@secured_script()
def raw_tokens_and_requests_mixed(s: Secured) -> None:
    s.handshake(version=1)
    s.frame("a raw token after version 1", framed(s.token()))
    s.ended()
    s.handshake(version=0, on=f"{SASL}/0")
    s.authenticate(s.token(), on=f"{SASL}/0")
    s.ended(f"{SASL}/0")


@secured_script()
def frames_that_are_none(s: Secured) -> None:
    hello = bytes.fromhex("160301002f0100002b0303") + bytes(36)
    for name, data in (
        ("length 0", struct.pack(">i", 0)),
        ("length -1", struct.pack(">i", -1)),
        ("half a header", framed(b"\x00\x12\x00")),
        ("a TLS greeting", hello),
        ("one byte too long", struct.pack(">i", MAX_FRAME + 1)),
    ):
        s.frame(f"before the handshake: {name}", data, f"{SASL}/{name}")
        on = f"{SASL}/after {name}"
        s.handshake(on=on)
        s.frame(f"after the handshake: {name}", data, on)


@secured_script()
def the_largest_token(s: Secured) -> None:
    """The frame may have as many bytes as the limit says."""
    for extra in (0, 1):
        on = f"{SASL}/{extra}"
        s.handshake(on=on)
        connection = s.connection(on)
        empty = len(connection.encode("sasl_authenticate", 0, {"auth_bytes": b""})) - 4
        token = b"x" * (MAX_FRAME - empty + extra)
        s.frame(f"{extra} too long", connection.encode("sasl_authenticate", 0, {"auth_bytes": token}), on)
        s.ended(on)


@secured_script()
def all_in_one_write(s: Secured) -> None:
    """Requests that do not wait for answers are served in their order."""
    connection = s.connection(SASL)
    software = {"client_software_name": "differential", "client_software_version": "1"}
    frames = [
        connection.encode("api_versions", 3, software),
        connection.encode("sasl_handshake", 1, {"mechanism": "PLAIN"}),
        connection.encode("sasl_authenticate", 2, {"auth_bytes": s.token()}),
        connection.encode("find_coordinator", 3, {"key": "", "key_type": 9}),
    ]
    connection.send_raw(b"".join(frames))
    answers = [connection.read_frame() for _ in frames]
    s.note("answers", [struct.unpack_from(">i", answer)[0] for answer in answers])


@secured_script()
def nothing_is_served_after_a_failure(s: Secured) -> None:
    """Frames that were sent with a wrong password are not looked at."""
    connection = s.connection(SASL)
    bad = plain_token(s.user(BOB), password_of("x") + "wrong")
    frames = [
        connection.encode("sasl_handshake", 1, {"mechanism": "PLAIN"}),
        connection.encode("sasl_authenticate", 2, {"auth_bytes": bad}),
        connection.encode("sasl_authenticate", 2, {"auth_bytes": s.token()}),
        connection.encode("metadata", 1, {"topics": ()}),
    ]
    connection.send_raw(b"".join(frames))
    for what in ("handshake", "failure"):
        s.note(what, struct.unpack_from(">i", connection.read_frame())[0])
    s.ended()
