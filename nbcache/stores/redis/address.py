"""Where a Redis is, from the URL that a user gives.

::

    redis://[user[:password]@]host[:6379][/database]                 one server
    rediss://…                                                       the same over TLS
    unix://[user[:password]@]/path/of/socket                         one server, on this machine
    redis+cluster://[…@]host[:6379][,host[:6379]]…                   a Cluster, by some of its nodes
    redis+sentinel://[…@]host[:26379][,host[:26379]]…[/database]     the primary that Sentinels name
    rediss+cluster://…, rediss+sentinel://…                          the same over TLS

User and password are percent-encoded, and are those of the Redis, also where the hosts are Sentinels. Options
follow in the query:

===========================================  =================================================================
`prefix=team`                                what keys begin with; without it, `nbcache`
`ttl=604800`                                 seconds after which what was put is gone; without it, never
`db=1`                                       the database, where it is not in the path
`service=mymaster`                           the Sentinels' name of the Redis; without it, `mymaster`
`sentinel_username=`, `sentinel_password=`   those of the Sentinels, where they ask for any
`ssl_ca_certs=`                              file of the certificates that are trusted, with TLS
`ssl_certfile=`, `ssl_keyfile=`              files of one's own certificate and its key
===========================================  =================================================================

No option turns off the check of a server's certificate: who can answer in its place could serve any code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from nbcache.core.errors import ConfigError

__all__ = ["SCHEMES", "Address"]

SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)

PREFIX = "nbcache"
"""What keys begin with, unless a URL says otherwise."""
SERVICE = "mymaster"
"""What Sentinels call the Redis, unless a URL says otherwise."""
_PORT = 6379
_SENTINEL_PORT = 26379
_OPTIONS = ("prefix", "ttl", "db", "service", "sentinel_username", "sentinel_password")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

# No glob character, since keys are listed by pattern; no brace, since a Cluster hashes what is in braces.
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL; its name and `repr` hold neither user nor password."""

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    """Host and port of the server, of nodes of the Cluster, or of Sentinels; empty for a socket."""
    path: str = ""
    """Path of the socket."""
    database: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    prefix: str = PREFIX
    ttl: int | None = None
    """Seconds."""
    service: str = SERVICE
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def tls(self) -> bool:
        return self.scheme.startswith("rediss")

    @property
    def cluster(self) -> bool:
        return self.scheme.endswith("+cluster")

    @property
    def sentinel(self) -> bool:
        return self.scheme.endswith("+sentinel")

    @property
    def name(self) -> str:
        """The URL again, with those options that say where: without user, password, files and times."""
        socket = self.scheme == "unix"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        path = self.path if socket else "" if self.cluster else f"/{self.database}"
        options = {
            "db": self.database if socket and self.database else "",
            "prefix": "" if self.prefix == PREFIX else self.prefix,
            "service": "" if self.service == SERVICE else self.service,
        }
        query = "&".join(f"{name}={quote(str(value))}" for name, value in options.items() if value)
        return f"{self.scheme}://{hosts}{path}" + (f"?{query}" if query else "")

    @classmethod
    def parse(cls, url: str) -> Address:
        """Return what `url` says; ConfigError, which does not quote it, where it says nothing that can be."""
        try:
            parts = urlsplit(url)
            userinfo, _, hosts = parts.netloc.rpartition("@")
        except ValueError as error:  # brackets that do not match
            raise _wrong("has a host that is none", url) from error
        if parts.scheme not in SCHEMES:
            raise _wrong("has no scheme of Redis", url)
        if parts.fragment:
            raise _wrong("has a part after '#', as snapshots do, and here a store is needed", url)
        cluster, socket = parts.scheme.endswith("+cluster"), parts.scheme == "unix"
        sentinel = parts.scheme.endswith("+sentinel")
        options = _options(url, parts.query, tls=parts.scheme.startswith("rediss"))
        database = options.get("db", "0") if socket else parts.path.strip("/") or options.get("db", "0")
        username, _, password = userinfo.partition(":")
        address = cls(
            scheme=parts.scheme,
            hosts=() if socket else _hosts(url, hosts, _SENTINEL_PORT if sentinel else _PORT),
            path=unquote(parts.path) if socket else "",
            database=_number(url, "database", database),
            username=unquote(username) or None,
            password=unquote(password) or None,
            prefix=options.get("prefix", PREFIX),
            ttl=_number(url, "ttl", options["ttl"]) if "ttl" in options else None,
            service=options.get("service", SERVICE),
            sentinel_username=options.get("sentinel_username"),
            sentinel_password=options.get("sentinel_password"),
            tls_files={name: options[name] for name in _TLS_OPTIONS if name in options},
        )
        if socket and (hosts or not address.path.strip("/")):
            raise _wrong("has no path of a socket: three slashes after 'unix:'", url)
        if cluster and address.database:
            raise _wrong("has a database, and a Cluster has none", url)
        if len(address.hosts) > 1 and not (cluster or sentinel):
            raise _wrong("has more than one host: those of a Cluster need redis+cluster://", url)
        if not _PREFIX.fullmatch(address.prefix):
            raise _wrong("has a prefix that is not of A-Z a-z 0-9 _ . : - alone", url)
        if address.ttl == 0:
            raise _wrong("has a ttl of 0, which keeps nothing", url)
        return address


def _options(url: str, query: str, *, tls: bool) -> dict[str, str]:
    known = (*_OPTIONS, *(_TLS_OPTIONS if tls else ()))
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in known:
            # Its name alone: the value may be a password.
            raise _wrong(f"has an option {name[:40]!r}; the options are {', '.join(known)}", url)
    return options


def _hosts(url: str, hosts: str, port: int) -> tuple[tuple[str, int], ...]:
    found = []
    for host in hosts.split(","):
        try:
            parts = urlsplit(f"//{host}")
            number = parts.port
        except ValueError as error:
            raise _wrong("has a port that is no number up to 65535", url) from error
        if not parts.hostname:
            raise _wrong("has no host", url)
        found.append((unquote(parts.hostname), port if number is None else number))
    return tuple(found)


def _number(url: str, what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise _wrong(f"has a {what} that is no number", url)
    return int(text)


def _wrong(what: str, url: str) -> ConfigError:
    scheme = url.partition("://")[0]
    return ConfigError(
        f"the URL of the Redis {what}",
        where=f"{scheme}://…" if scheme in SCHEMES else None,
        next_step="write it as redis://[user:password@]host[:port][/database], both percent-encoded",
    )
