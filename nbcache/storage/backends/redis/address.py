"""The address of a Redis, parsed from a user's URL. The schemes are::

    redis://[user[:password]@]host[:6379][/database]                 one server
    redis+cluster://[…@]host[:6379][,host[:6379]]…                   a Cluster, by some of its nodes
    redis+sentinel://[…@]host[:26379][,host[:26379]]…[/database]     the primary that Sentinels name
    rediss://…, rediss+cluster://…, rediss+sentinel://…              the same over TLS

User and password are percent-encoded. They belong to the Redis, even if the hosts are Sentinels. The query
has options; docs/snapshots.md lists them.

No option turns off the check of a server's certificate: an impostor of the server could serve any code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from nbcache.core.errors import ConfigError

SCHEMES = ("redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")

PREFIX = "nbcache"
SERVICE = "mymaster"
_PORT = 6379
_SENTINEL_PORT = 26379
_OPTIONS = ("prefix", "ttl", "service", "sentinel_password")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

# No glob characters, since listings use a pattern. No braces, since a Cluster hashes only the text in braces.
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL; `name` and `repr` omit user and password."""

    scheme: str
    url: str = field(repr=False)
    """Argument of redis-py's `from_url`: the server, the Cluster's first node, or the Sentinels' primary."""
    hosts: tuple[str, ...]
    sentinels: tuple[str, ...] = field(default=(), repr=False)
    database: int = 0
    prefix: str = PREFIX
    ttl: int | None = None
    service: str = SERVICE

    @property
    def tls(self) -> bool:
        return self.scheme.startswith("rediss")

    @property
    def cluster(self) -> bool:
        return self.scheme.endswith("+cluster")

    @property
    def name(self) -> str:
        """The URL with the options `prefix` and `service`, without user and password."""
        options = [("prefix", self.prefix, PREFIX), ("service", self.service, SERVICE)]
        query = urlencode({name: value for name, value, usual in options if value != usual})
        path = "" if self.cluster else f"/{self.database}"
        return f"{self.scheme}://{','.join(self.hosts)}{path}" + (f"?{query}" if query else "")

    @classmethod
    def parse(cls, url: str) -> Address:
        """Return the address in `url`; ConfigError, without a quotation of the URL, if it is wrong."""
        try:
            parts = urlsplit(url)
        except ValueError as error:  # unbalanced brackets
            raise _wrong("has an invalid host name", url) from error
        scheme = parts.scheme
        if scheme not in SCHEMES:
            raise _wrong("has no scheme of Redis", url)
        if parts.fragment:
            raise _wrong("has a part after '#', as snapshots do, and here a store is needed", url)
        tls, sentinel = scheme.startswith("rediss"), scheme.endswith("+sentinel")
        user, at, netloc = parts.netloc.rpartition("@")
        allowed = (*_OPTIONS, *_TLS_OPTIONS) if tls else _OPTIONS
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options.keys() - set(allowed):
            # Only its name: the value may be a password.
            raise _wrong(f"has an option {name[:40]!r}; the options are {', '.join(allowed)}", url)
        port = _SENTINEL_PORT if sentinel else _PORT
        hosts = tuple(_host(url, host, port) for host in netloc.split(","))
        base = "rediss://" if tls else "redis://"
        query = urlencode({name: value for name, value in options.items() if name in _TLS_OPTIONS})
        database = _number(url, "database", parts.path.strip("/") or "0")
        password = quote(options.get("sentinel_password", ""), safe="")
        address = cls(
            scheme=scheme,
            url=f"{base}{user}{at}{hosts[0]}/{database or ''}?{query}",
            hosts=hosts,
            sentinels=tuple(f"{base}:{password}@{host}?{query}" for host in hosts) if sentinel else (),
            database=database,
            prefix=options.get("prefix", PREFIX),
            ttl=_number(url, "ttl", options["ttl"]) if "ttl" in options else None,
            service=options.get("service", SERVICE),
        )
        if address.cluster and database:
            raise _wrong("has a database, and a Cluster has none", url)
        if len(hosts) > 1 and not (address.cluster or sentinel):
            raise _wrong("has more than one host: those of a Cluster need redis+cluster://", url)
        if not _PREFIX.fullmatch(address.prefix):
            raise _wrong("has a prefix with other characters than A-Z a-z 0-9 _ . : -", url)
        if address.ttl == 0:
            raise _wrong("has a ttl of 0, which keeps nothing", url)
        return address


def _host(url: str, host: str, port: int) -> str:
    try:
        parts = urlsplit(f"//{host}")
        number = port if parts.port is None else parts.port
    except ValueError as error:
        raise _wrong("has a port that is not a number up to 65535", url) from error
    if not parts.hostname:
        raise _wrong("has no host", url)
    return f"[{parts.hostname}]:{number}" if ":" in parts.hostname else f"{parts.hostname}:{number}"


def _number(url: str, noun: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise _wrong(f"has a {noun} that is no number", url)
    return int(text)


def _wrong(problem: str, url: str) -> ConfigError:
    scheme = url.partition("://")[0]
    return ConfigError(
        f"the URL of the Redis {problem}",
        where=f"{scheme}://…" if scheme in SCHEMES else None,
        next_step="write it as redis://[user:password@]host[:port][/database], both percent-encoded",
    )
