"""The socket of a worker that listens: where it was told to, and never on every address of the machine."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address

from moeinf.distributed.meeting import PeerAddress
from moeinf.errors import UsageError, WorkerError


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there and nowhere else; an IPv4 address where a name has both. Port 0: any that is free.

    Raises WorkerError where the address cannot be had, UsageError where it is every address of this machine.
    """
    where = f"--bind {PeerAddress(host, port)}"
    try:
        family, _, _, _, address = min(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), key=lambda found: found[0] != socket.AF_INET
        )
        listening = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise WorkerError(f"{where}: {_reason(error)}; give an address of this machine") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        if _is_every_address(listening.getsockname()[0]):  # by whatever name it was given
            raise UsageError(f"{where} is every address of this machine; give the one that rank 0 comes to")
        listening.listen(socket.SOMAXCONN)  # a flood must not keep the system from taking others
    except OSError as error:
        listening.close()
        raise WorkerError(f"{where}: {_reason(error)}; give an address of this machine") from error
    except BaseException:
        listening.close()
        raise
    return listening


def _is_every_address(text: str) -> bool:
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_unspecified


def _reason(error: OSError | ValueError) -> str:
    return str((error.strerror if isinstance(error, OSError) else None) or error)
