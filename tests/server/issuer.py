"""An issuer of tokens over HTTPS, in a thread: its key set, and tokens for a client's secret."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.security.tokens import claims, key_set, public, rsa, signed

CLIENT_ID, CLIENT_SECRET = "worker", "canary-secret"


class Issuer:
    """- `keys`: the content of the key set
    - `gate`: answers wait until it is set
    - `lifetime_s`: of new tokens
    - `asked`, `forms`: the requests"""

    def __init__(self, port: int) -> None:
        self.port = port
        self.keys: bytes = key_set(public(rsa("a")))
        self.headers: Mapping[str, str] = {}
        self.status = 200
        self.gate = threading.Event()
        self.gate.set()
        self.lifetime_s = 300
        self.asked: list[str] = []
        self.forms: list[Mapping[str, list[str]]] = []

    def url(self, path: str) -> str:
        return f"https://localhost:{self.port}/{path}"

    def token(self, **changed: Any) -> str:
        now_s = time.time()
        return signed(rsa("a"), claims(now_s, sub=CLIENT_ID, exp=now_s + self.lifetime_s, **changed))

    def answer(self, path: str, form: Mapping[str, list[str]], authorization: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if path == "/keys":
            return self.status, self.keys
        self.forms.append(form)
        basic = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if path != "/token" or authorization != basic or form.get("grant_type") != ["client_credentials"]:
            return 401, b'{"error": "invalid_client"}'
        found = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime_s}
        return 200, json.dumps(found).encode()


@contextmanager
def open_issuer(certificate: Path) -> Iterator[Issuer]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            form = parse_qs(self.rfile.read(size).decode())
            status, content = issuer.answer(self.path, form, self.headers.get("Authorization", ""))
            issuer.gate.wait()
            self.send_response(status)
            for name, value in issuer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content)

        do_POST = do_GET

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that does not trust the certificate is a test of its own."""

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    issuer = Issuer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        issuer.gate.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
