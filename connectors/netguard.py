"""Which hosts and files an API user may make the service open (against forged requests).

A user who declares a source or sink chooses addresses that this process opens from inside the
operator's network. Invariant: every address from a user is checked here before it is opened, by
what its name resolves to and not by its spelling. The same holds for files, with links followed.
Files are denied unless a listed folder contains them. Addresses in the operator's own settings are
not checked.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from dataflow.errors import SourceError, TemporaryError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Metadata services hand out a machine's credentials to any process on it. Link-local networks,
# where most of them are, are refused as a whole.
METADATA = (
    "100.100.100.200/32",  # Alibaba
    "168.63.129.16/32",  # Azure's own
    "192.0.0.192/32",  # Oracle
    "fd00:ec2::/32",  # Amazon over IPv6
    "fd20:ce::254/128",  # Google over IPv6
)
_METADATA = tuple(ipaddress.ip_network(text) for text in METADATA)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Views into the kernel and its devices, never user data.
_NEVER = ("/proc", "/sys", "/dev")
_SYSTEM_CERTIFICATES = ("/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/lib/ssl")
_PORT = re.compile(r":\d{1,5}\Z")


@dataclass(frozen=True)
class Guard:
    """What is allowed.

    hosts: globs of names, addresses and networks; () allows any host that is not always refused.
    folders: roots of files; () allows none. is_local: whether this machine's own addresses are
    allowed. credentials: folders of secrets, for certificates only. modules: Python modules that
    may be imported. writable: roots of folders that sinks write to; () allows none.
    """

    hosts: Sequence[str] = ()
    folders: Sequence[str] = ()
    forbidden: Sequence[str] = ()
    credentials: Sequence[str] = ()
    is_local: bool = True
    modules: Sequence[str] = ()
    writable: Sequence[str] = ()

    def why_not(self, host: str, addresses: Iterable[Address]) -> str:
        """Return why a host with these addresses must not be opened; "" if it may be.

        >>> Guard().why_not("db", [ipaddress.ip_address("169.254.169.254")])
        '169.254.169.254 is link-local, where clouds give out credentials'
        >>> Guard(hosts=["*.shop", "10.0.0.0/8"]).why_not("db", [ipaddress.ip_address("10.1.1.1")])
        ''
        """
        networks = [n for n in map(_network, self.hosts) if n is not None]
        is_named = any(fnmatchcase(host.lower(), glob.lower()) for glob in self.hosts)
        for address in map(_unwrapped, addresses):
            if any(address in network for network in networks):
                continue
            why = _always(address) or ("" if self.is_local or is_named else _local(address))
            if why:
                return f"{address} {why}"
            if self.hosts and not is_named:
                return f"{address} is not among the allowed hosts"
        return ""

    def may_read(self, path: str) -> bool:
        """Return True if the file or folder with this real path may be read as a source.

        >>> Guard().may_read("/data/a.csv"), Guard(folders=["/data"]).may_read("/data/a.csv")
        (False, True)
        """
        hidden = (*_NEVER, *self.forbidden, *self.credentials)
        if any(_is_below(path, folder) for folder in hidden):
            return False
        return any(_is_below(path, folder) for folder in self.folders)

    def may_write(self, path: str) -> bool:
        """Return True if a sink may write to the file or folder with this real path.

        >>> Guard(folders=["/data"]).may_write("/data"), Guard(writable=["/a"]).may_write("/a/b")
        (False, True)
        """
        hidden = (*_NEVER, *self.forbidden, *self.credentials)
        if any(_is_below(path, folder) for folder in hidden):
            return False
        return any(_is_below(path, folder) for folder in self.writable)

    def may_trust(self, path: str) -> bool:
        """Return True if the file with this real path may be used as a certificate or its key."""
        if any(_is_below(path, folder) for folder in (*_NEVER, *self.forbidden)):
            return False
        roots = (*self.folders, *self.credentials, *_SYSTEM_CERTIFICATES)
        return any(_is_below(path, root) for root in roots)


_guard = Guard()


def install(guard: Guard) -> None:
    """Set what is allowed; call it once when a process starts."""
    global _guard
    _guard = guard


def installed() -> Guard:
    """Return the installed guard, for another process to install."""
    return _guard


def check_host(host: str, port: int = 0) -> list[str]:
    """Return the addresses of a host that may be opened.

    SourceError host.forbidden. TemporaryError host.unknown: the name cannot be resolved at the
    moment.
    """
    plain = host.strip("[]").partition("%")[0]
    try:
        found = socket.getaddrinfo(plain, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TemporaryError(
            "host.unknown",
            f'the name of host "{plain}" cannot be resolved',
            detail=str(error),
            hint="check the name, and the service's name servers",
        ) from None
    texts = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
    why = _guard.why_not(plain, [ipaddress.ip_address(text) for text in texts])
    if why:
        raise SourceError(
            "host.forbidden",
            f'host "{plain}" must not be reached',
            detail=why,
            hint="ask the operator to list the host in TIDEMARK_ALLOW_HOSTS",
        )
    return texts


def check_url(url: str) -> list[str]:
    """Return the addresses of a URL's host that may be opened; errors as in `check_host`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 0
    except ValueError:
        host, port = None, 0
    if not host:
        raise SourceError("host.forbidden", f'"{url}" names no host', hint="http://host:port")
    return check_host(host, port)


def check_servers(servers: Iterable[str]) -> list[str]:
    """Return the "host:port" entries that resolve; TemporaryError host.unknown if none does."""
    resolved: list[str] = []
    last: TemporaryError | None = None
    for server in servers:
        host = _PORT.sub("", server)
        try:
            check_host(host, int(server.rpartition(":")[2]))
            resolved.append(server)
        except TemporaryError as error:
            last = error
    if not resolved and last is not None:
        raise last
    return resolved


def may_read(path: str) -> bool:
    """Return True if a file or folder is in the allowed folders, with links followed."""
    return _guard.may_read(os.path.realpath(path))


def check_path(path: str) -> None:
    """Refuse a file or folder outside the allowed folders. SourceError path.forbidden."""
    if not may_read(path):
        raise _forbidden(path, "TIDEMARK_ALLOW_FOLDERS")


def check_sink_path(path: str) -> None:
    """Refuse a folder that sinks may not write to. SourceError path.forbidden."""
    if not _guard.may_write(os.path.realpath(path)):
        raise _forbidden(path, "TIDEMARK_SINK_FOLDERS")


def check_module(name: str) -> None:
    """Refuse a Python module that is not allowed by its whole name. SourceError
    module.forbidden."""
    if name not in _guard.modules:
        raise SourceError(
            "module.forbidden",
            f'the Python module "{name}" must not be imported',
            hint="ask the operator to list the module in TIDEMARK_ALLOW_MODULES",
        )


def check_certificate(path: str) -> None:
    """Refuse a certificate file outside the allowed folders. SourceError path.forbidden."""
    if path and not _guard.may_trust(os.path.realpath(path)):
        raise _forbidden(path, "TIDEMARK_SECRET_FOLDERS")


def check_open(number: int, path: str) -> None:
    """Refuse an open file by its real path, whatever its link points to now."""
    real = f"/proc/self/fd/{number}"
    check_path(os.readlink(real) if os.path.lexists(real) else path)


def _forbidden(path: str, setting: str) -> SourceError:
    detail = "after following links, it is outside the folders that the service's settings allow"
    listed = {"TIDEMARK_ALLOW_FOLDERS": _guard.folders, "TIDEMARK_SINK_FOLDERS": _guard.writable}
    if not listed.get(setting, True):
        detail = f"no folder is allowed: {setting} is empty"
    use = "written to" if setting == "TIDEMARK_SINK_FOLDERS" else "read"
    return SourceError(
        "path.forbidden",
        f'path "{path}" must not be {use}',
        detail=detail,
        hint=f"ask the operator to list the folder in {setting}",
    )


def _is_below(path: str, folder: str) -> bool:
    root = os.path.realpath(folder)
    return path == root or path.startswith(root.rstrip("/") + "/")


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address maps."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _always(address: Address) -> str:
    """Return why an address is always refused, independent of the service's listen address."""
    if address.is_link_local:
        return "is link-local, where clouds give out credentials"
    if any(address in network for network in _METADATA):
        return "is where a cloud gives out credentials"
    if address.is_multicast or (address.is_reserved and not address.is_loopback):
        return "is no host's address"
    return ""


def _local(address: Address) -> str:
    if address.is_loopback or address.is_unspecified:
        return "is this machine, which a service that others reach does not open"
    return ""
