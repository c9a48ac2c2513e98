"""``undrift federation init``: folders for the server and every site, with certificates and keys."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from undrift.core.files import first_line, read_toml
from undrift.errors import ConfigError, UnreadableError
from undrift.experiment.run_folder import check_output
from undrift.rounds.plan import shown

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_DAYS = 825
_SOON = 30
"""Days before its end at which a certificate is warned of."""
POLICY: dict[str, Any] = {
    "most_steps": 100_000,
    "least_batch": 8,
    "most_rounds": 100_000,
    "algorithms": [],
    "modules": [],
    "message_timeout": 300,
}
"""What a site does at most, unless its operator says otherwise: steps of a round, the smallest batch, rounds in all
runs, which algorithms (none named: all), which modules a server may name, seconds in which a message must have
arrived."""


def init(folder: Path, sites: list[str], address: str = "127.0.0.1", port: int = 8000) -> None:
    """Write a ready-to-copy set-up."""
    _check(folder, sites, address)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca_key, ca = _authority()
    _secret(folder / "ca.key", _pem(ca_key))
    _server(folder / "server", sites, address, port, ca_key, ca)
    for name in sites:
        _site(folder / name, name, f"{address}:{port}", ca, folder / "server" / "keys")
    (folder / "README.md").write_text(_page(sites, address, port))


def _check(folder: Path, sites: list[str], address: str) -> None:
    check_output(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: exists already; a federation needs a new folder")
    if not sites or len(set(sites)) < len(sites):
        raise ConfigError(f"--sites {','.join(sites)}: different names joined by commas are needed")
    for name in sites:
        if not _NAME.fullmatch(name) or name == "server":
            raise ConfigError(f"--sites: {name!r} is not a name for a site (small letters, digits, - and _)")
    if not re.fullmatch(r"[A-Za-z0-9.:-]+", address):
        raise ConfigError(f"--address {address!r}: a host name or an IP address is needed")


def _server(folder: Path, sites: list[str], address: str, port: int, ca_key: Any, ca: x509.Certificate) -> None:
    folder.mkdir(mode=0o700)
    (folder / "keys").mkdir()
    key, certificate = _certificate(address, ca_key, ca)
    (folder / "ca.pem").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    _secret(folder / "server.key", _pem(key))
    _secret(folder / "secret", secrets.token_hex(32).encode())
    settings = {"sites": sorted(sites), "address": address, "port": port}
    (folder / "federation.toml").write_text(tomli_w.dumps(settings))


def _site(folder: Path, name: str, server: str, ca: x509.Certificate, keys: Path) -> None:
    folder.mkdir(mode=0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / "ca.pem").write_bytes(ca.public_bytes(Encoding.PEM))
    _secret(folder / "site.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (folder / "site.pub").write_bytes(public)
    (keys / f"{name}.pub").write_bytes(public)
    settings = {"name": name, "server": server, "allow_shared_data": False} | POLICY
    (folder / "site.toml").write_text(tomli_w.dumps(settings))


def _authority() -> tuple[Any, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "undrift federation")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _builder(name, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return key, builder.add_extension(identifier, critical=False).sign(key, hashes.SHA384())


def _certificate(address: str, ca_key: Any, ca: x509.Certificate) -> tuple[Any, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "undrift server")])
    hosts = dict.fromkeys([address, "localhost", "127.0.0.1"])
    builder = _builder(name, ca.subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return key, builder.add_extension(issuer, critical=False).sign(ca_key, hashes.SHA384())


def _builder(subject: x509.Name, issuer: x509.Name, public: Any) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return x509.CertificateBuilder(
        issuer,
        subject,
        public,
        x509.random_serial_number(),
        now - datetime.timedelta(hours=1),
        _end(),
    )


def _end() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=_DAYS)


def check_expiry(paths: Sequence[Path], say: Callable[[str], None]) -> None:
    """Refuse certificates that are no longer valid; say which soon will not be."""
    for path in paths:
        try:
            end = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: not a certificate ({first_line(error)})") from None
        left = (end - datetime.datetime.now(datetime.UTC)).days
        if left < 0:
            raise ConfigError(f"{path}: expired on {end:%Y-%m-%d}; a new one is needed (`undrift federation init`)")
        if left < _SOON:
            say(f"{path}: expires on {end:%Y-%m-%d}, in {left} days")


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: Any) -> bytes:
    content: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return content


def _secret(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _page(sites: list[str], address: str, port: int) -> str:
    lines = "".join(
        f"| `{name}/` | the machine of site {name} | `undrift federation join {name} --data mine.npz` |\n"
        for name in sites
    )
    return (
        "# This federation\n\n"
        "| folder | goes to | and is started there with |\n|---|---|---|\n"
        f"| `server/` | the server ({address}, port {port} open for the sites) "
        "| `undrift federation serve server` |\n"
        f"{lines}\n"
        "Each folder holds private keys: copy it over a safe channel, and keep no other copy.\n"
        "`ca.key` signs certificates of this federation; nobody needs it to run: keep it off line.\n"
        f"Certificates are valid until {_end():%Y-%m-%d}.\n"
    )


@dataclass(frozen=True)
class ServerFolder:
    """The server's folder."""

    folder: Path
    sites: tuple[str, ...]
    address: str
    port: int

    @property
    def local(self) -> str:
        """Where the server is reached from its own machine."""
        return f"127.0.0.1:{self.port}"

    @property
    def ca(self) -> bytes:
        """The authority's certificate."""
        return (self.folder / "ca.pem").read_bytes()

    @property
    def secret(self) -> bytes:
        """What entitles a process of this machine to act as the server."""
        return (self.folder / "secret").read_bytes()

    def keys(self) -> dict[str, bytes]:
        """Every site's public key, as Flower compares it."""
        return {name: _public_bytes(self.folder / "keys" / f"{name}.pub") for name in self.sites}

    @staticmethod
    def read(folder: Path) -> ServerFolder:
        """Read ``federation.toml`` and what belongs to it."""
        settings = _settings(folder / "federation.toml", sites=list, address=str, port=int)
        for name in ("ca.pem", "server.pem", "server.key", "secret"):
            if not (folder / name).exists():
                raise ConfigError(f"{folder}: {name} is missing; is this the server's folder?")
        return ServerFolder(folder, tuple(sorted(settings["sites"])), settings["address"], settings["port"])


@dataclass(frozen=True)
class SiteFolder:
    """A site's folder."""

    folder: Path
    name: str
    server: str
    allow_shared_data: bool
    most_steps: int = POLICY["most_steps"]
    least_batch: int = POLICY["least_batch"]
    most_rounds: int = POLICY["most_rounds"]
    algorithms: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    """Modules whose names a server may call: code that runs here."""
    message_timeout: float = POLICY["message_timeout"]

    @staticmethod
    def read(folder: Path) -> SiteFolder:
        """Read ``site.toml``."""
        settings = _settings(
            folder / "site.toml",
            {"algorithms": list, "modules": list}
            | dict.fromkeys(("most_steps", "least_batch", "most_rounds", "message_timeout"), int),
            name=str,
            server=str,
            allow_shared_data=bool,
        )
        for key in ("algorithms", "modules"):
            settings[key] = tuple(map(str, settings.get(key, ())))
        for name in ("ca.pem", "site.key", "site.pub"):
            if not (folder / name).exists():
                raise ConfigError(f"{folder}: {name} is missing; is this a site's folder?")
        return SiteFolder(folder, **settings)


def _settings(path: Path, optional: Mapping[str, type] | None = None, **fields: type) -> dict[str, Any]:
    try:
        settings = read_toml(path)
    except UnreadableError as error:
        raise ConfigError(f"{error}; `undrift federation init` writes it") from None
    known = fields | dict(optional or {})
    for name in sorted(settings.keys() | fields.keys()):
        if name not in known:
            raise ConfigError(f"{path}: unknown key {name!r}; known: {', '.join(known)}")
        value = settings.get(name)
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
            raise ConfigError(f"{path}: {name} = {shown(value)}: {known[name].__name__} is needed")
        if name in (optional or {}) and isinstance(value, int) and value < 1:
            raise ConfigError(f"{path}: {name} = {value}: at least 1 is needed")
    return settings


def _public_bytes(path: Path) -> bytes:
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a public key ({error})") from None
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
