"""The address of a Redis, parsed from the URL that a user gives.

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
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

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
    url: str = field(repr=False)
    """For `from_url` of redis-py: the server, the Cluster's first node, or the Redis that Sentinels name."""
    sentinels: tuple[str, ...] = field(default=(), repr=False)
    """For `from_url` of redis-py: each Sentinel."""
    hosts: tuple[str, ...] = ()
    """`host:port` of the server, of nodes of the Cluster, or of Sentinels; empty for a socket."""
    path: str = ""
    """Path of the socket."""
    database: int = 0
    prefix: str = PREFIX
    ttl: int | None = None
    """Seconds."""
    service: str = SERVICE

    @property
    def tls(self) -> bool:
        return self.scheme.startswith("rediss")

    @property
    def cluster(self) -> bool:
        return self.scheme.endswith("+cluster")

    @property
    def name(self) -> str:
        """The URL again, with those options that say where: without user, password, files and times."""
        path = self.path if self.path else "" if self.cluster else f"/{self.database}"
        options = {
            "db": self.database if self.path and self.database else "",
            "prefix": "" if self.prefix == PREFIX else self.prefix,
            "service": "" if self.service == SERVICE else self.service,
        }
        query = urlencode({name: value for name, value in options.items() if value})
        return f"{self.scheme}://{','.join(self.hosts)}{path}" + (f"?{query}" if query else "")

    @classmethod
    def parse(cls, url: str) -> Address:
        """Return the address in `url`; raise ConfigError, which does not quote the URL, where it is wrong."""
        try:
            parts = urlsplit(url)
        except ValueError as error:  # brackets that do not match
            raise _wrong("has an invalid host name", url) from error
        scheme, tls = parts.scheme, parts.scheme.startswith("rediss")
        if scheme not in SCHEMES:
            raise _wrong("has no scheme of Redis", url)
        if parts.fragment:
            raise _wrong("has a part after '#', as snapshots do, and here a store is needed", url)
        socket, sentinel = scheme == "unix", scheme.endswith("+sentinel")
        user, at, netloc = parts.netloc.rpartition("@")
        if socket and (netloc or not parts.path.strip("/")):
            raise _wrong("has no path of a socket: three slashes after 'unix:'", url)
        options = _options(url, parts.query, tls=tls)
        database = options.get("db", "0") if socket else parts.path.strip("/") or options.get("db", "0")
        port = _SENTINEL_PORT if sentinel else _PORT
        hosts = () if socket else tuple(_host(url, host, port) for host in netloc.split(","))
        base = "unix://" if socket else "rediss://" if tls else "redis://"
        place = parts.path if socket else hosts[0]
        files = {name: options[name] for name in _TLS_OPTIONS if name in options}
        number = _number(url, "database", database)
        query = urlencode(({"db": number} if number else {}) | files)
        credentials = [
            quote(options.get(f"sentinel_{name}", ""), safe="") for name in ("username", "password")
        ]
        address = cls(
            scheme=scheme,
            url=f"{base}{user}{at}{place}?{query}",
            sentinels=tuple(f"{base}{':'.join(credentials)}@{host}?{urlencode(files)}" for host in hosts)
            if sentinel
            else (),
            hosts=hosts,
            path=unquote(parts.path) if socket else "",
            database=number,
            prefix=options.get("prefix", PREFIX),
            ttl=_number(url, "ttl", options["ttl"]) if "ttl" in options else None,
            service=options.get("service", SERVICE),
        )
        if address.cluster and number:
            raise _wrong("has a database, and a Cluster has none", url)
        if len(hosts) > 1 and not (address.cluster or sentinel):
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


def _host(url: str, host: str, port: int) -> str:
    try:
        parts = urlsplit(f"//{host}")
        number = port if parts.port is None else parts.port
    except ValueError as error:
        raise _wrong("has a port that is no number up to 65535", url) from error
    if not parts.hostname:
        raise _wrong("has no host", url)
    return f"[{parts.hostname}]:{number}" if ":" in parts.hostname else f"{parts.hostname}:{number}"


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
