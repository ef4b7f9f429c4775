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
import socket
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import Thread

from connectors.outside.address import AddressError, parse_host, parse_server, parse_url
from connectors.outside.texts import clean
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
# Networks of IPv6 whose last 32 bits are an IPv4 address: NAT64, and the compatible addresses.
_LAST_BITS = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
_ISATAP = 0x5EFE
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")
# A name server that does not answer holds nobody up for longer.
RESOLVE_S = 20.0
_SCHEMES = ("http", "https", "ws", "wss")
_DISCARD_PORT = 9
# Of the networks for documentation: no machine has them.
_NOBODYS = {
    4: ipaddress.ip_address("203.0.113.253"),
    6: ipaddress.ip_address("2001:db8:ffff:fffe::1"),
}
# Views into the kernel and its devices, never user data.
_NEVER = ("/proc", "/sys", "/dev")
_SYSTEM_CERTIFICATES = ("/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/lib/ssl")


@dataclass(frozen=True)
class Guard:
    """What is allowed.

    hosts: globs of names, addresses and networks; () allows any host that is not always refused.
    folders: roots of files; () allows none. is_local: whether this machine's own addresses are
    allowed. credentials: folders of secrets, for certificates only. modules: Python modules that
    may be imported. variables: globs of what functions of them get of the environment, besides what
    every program needs. writable: roots of folders that sinks write to; () allows none.
    """

    hosts: Sequence[str] = ()
    folders: Sequence[str] = ()
    forbidden: Sequence[str] = ()
    credentials: Sequence[str] = ()
    is_local: bool = True
    modules: Sequence[str] = ()
    variables: Sequence[str] = ()
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
        for address in (meant for found in addresses for meant in _meanings(found)):
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

    Whoever opens a connection opens one of these, never the name again: a name server may answer
    otherwise the next time. SourceError host.forbidden. TemporaryError host.unknown: the name
    cannot be resolved at the moment.
    """
    try:
        plain = parse_host(host)
    except AddressError as error:
        raise _unusual(host, error) from None
    texts = _resolved(plain, port)
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
        found = parse_url(url, _SCHEMES)
    except AddressError as error:
        raise _unusual(url, error) from None
    return check_host(found.host, found.port)


def check_servers(servers: Iterable[str]) -> list[str]:
    """Return the "host:port" entries that resolve; TemporaryError host.unknown if none does."""
    resolved: list[str] = []
    last: TemporaryError | None = None
    for server in servers:
        try:
            host, port = parse_server(server)
        except AddressError as error:
            raise _unusual(server, error) from None
        try:
            check_host(host, port)
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


def check_opened_sink(real: str, path: str) -> None:
    """Refuse a folder of a sink by the real path at which it was opened, whatever links its path
    has now. SourceError path.forbidden.
    """
    if not _guard.may_write(real):
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


def _meanings(address: Address) -> list[Address]:
    """Return the addresses that packets to an address may reach: itself, or those within it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    last = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped or address.sixtofour:
        return [address.ipv4_mapped or address.sixtofour or last]
    if address.teredo is not None:
        return [*address.teredo]
    if any(address in network for network in _LAST_BITS) and int(address) > 1:
        return [last]
    is_isatap = (int(address) >> 32) & 0xFFFF == _ISATAP
    return [address, last] if is_isatap else [address]


def _resolved(host: str, port: int) -> list[str]:
    """Return the addresses of a host. TemporaryError host.unknown."""
    if _network(host) is not None:
        return [host]
    found: list[str] = []
    failed: list[Exception] = [TimeoutError("no name server has answered in time")]

    def resolve() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.extend(str(entry[4][0]).partition("%")[0] for entry in entries)
        except (OSError, UnicodeError) as error:
            failed.append(error)

    # The resolver cannot be interrupted, so it is left to end by itself.
    thread = Thread(target=resolve, name="resolve", daemon=True)
    thread.start()
    thread.join(RESOLVE_S)
    if not found:
        raise TemporaryError(
            "host.unknown",
            f'the name of host "{host}" cannot be resolved',
            detail=str(failed[-1]),
            hint="check the name, and the service's name servers",
        )
    return list(dict.fromkeys(found))


def _unusual(text: str, error: AddressError) -> SourceError:
    return SourceError(
        "host.forbidden",
        f'the address "{clean(text)}" {error}',
        hint="write it plainly: a name, 192.0.2.1 or [2001:db8::1], and the port after a colon",
    )


def _always(address: Address) -> str:
    """Return why an address is always refused, independent of the service's listen address."""
    if address.is_link_local:
        return "is link-local, where clouds give out credentials"
    if any(address in network for network in _METADATA):
        return "is where a cloud gives out credentials"
    if address in _THIS_NETWORK and not address.is_unspecified:
        return "is no host's address"
    if address.is_multicast or (address.is_reserved and not address.is_loopback):
        return "is no host's address"
    return ""


def _local(address: Address) -> str:
    if address.is_loopback or address.is_unspecified or _is_own(address):
        return "is this machine, which a service that others reach does not open"
    return ""


def _is_own(address: Address) -> bool:
    """Return whether an address is one of this machine's interfaces, as they are now.

    The kernel reaches such an address from itself, or lets a socket have it. Nothing is sent: UDP
    connects without it.
    """
    with closing(_datagrams(address)) as found:
        try:
            found.connect((str(address), _DISCARD_PORT))
            if ipaddress.ip_address(found.getsockname()[0]) == address:
                return True
        except OSError:
            return False
    # Where sockets may have any address (ip_nonlocal_bind), the second question says nothing.
    return _can_have(address) and not _can_have(_NOBODYS[address.version])


def _can_have(address: Address) -> bool:
    with closing(_datagrams(address)) as found:
        try:
            found.bind((str(address), 0))
        except OSError:
            return False
    return True


def _datagrams(address: Address) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return socket.socket(family, socket.SOCK_DGRAM)
