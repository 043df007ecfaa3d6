"""Certificates for the tests, made with the openssl command: an authority and what it signed."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    directory: Path

    @property
    def authority(self) -> Path:
        return self.directory / "authority.pem"

    def file(self, name: str) -> Path:
        """Key and certificate in one file."""
        return self.directory / f"{name}.pem"

    def server_context(self, name: str) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.file(name))
        return context


def make_certificates(directory: Path) -> Certificates:
    made = Certificates(directory)
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"

    def openssl(command: str) -> None:
        arguments = ["openssl", *command.split()]
        subprocess.run(arguments, cwd=directory, check=True, capture_output=True, timeout=120)

    openssl(
        f"{new} -keyout authority.key -out authority.pem -subj /CN=authority "
        "-addext keyUsage=critical,keyCertSign"
    )
    for name, alternative in [
        ("local", "DNS:localhost,IP:127.0.0.1"),
        ("other", "DNS:other.example"),
        ("client", "DNS:client.example"),
    ]:
        openssl(
            f"{new} -keyout {name}.key -out {name}.crt -subj /CN={name} "
            "-CA authority.pem -CAkey authority.key "
            f"-addext subjectAltName={alternative} -addext basicConstraints=critical,CA:FALSE"
        )
    openssl(
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout expired.key "
        "-out expired.csr -subj /CN=expired -addext subjectAltName=IP:127.0.0.1"
    )
    openssl(
        "x509 -req -in expired.csr -out expired.crt -CA authority.pem -CAkey authority.key "
        "-days -1 -copy_extensions copyall"
    )
    for name in ("local", "other", "client", "expired"):
        parts = [(directory / f"{name}.{end}").read_text() for end in ("key", "crt")]
        made.file(name).write_text("".join(parts))
    openssl("pkcs8 -topk8 -in client.key -out locked.key -passout pass:secret")
    return made
