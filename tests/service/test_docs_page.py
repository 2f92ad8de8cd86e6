"""The documentation page needs no host but its own."""

import re
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from segops_service import paths

DOCS = paths.DOCS


class _Links(HTMLParser):
    """Every address in a page, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.inline = ""
        self._tag = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.addresses += [value for name, value in attributes if name in ("src", "href") and value]

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - the parser's signature
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style"):
            self.inline += data


@pytest.fixture(scope="module")
def links(client: httpx.Client) -> _Links:
    response = client.get(DOCS)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    return _Links(response.text)


def test_everything_the_page_loads_is_served_here(client: httpx.Client, links: _Links) -> None:
    files = [address for address in links.addresses if not address.startswith("data:")]
    assert len(files) == 3
    for address in files:
        assert not urlsplit(address).netloc
        response = client.get(urljoin(DOCS, address))
        assert response.status_code == 200
        kind = "text/css" if address.endswith(".css") else "text/javascript"
        assert response.headers["content-type"].startswith(kind)
        assert response.content


def test_the_page_starts_on_the_document_of_this_server_and_asks_nobody_else(
    client: httpx.Client, links: _Links
) -> None:
    (start,) = (address for address in links.addresses if address.endswith("start.js"))
    script = client.get(urljoin(DOCS, start)).text
    found = re.search(r'url: "([^"]+)"', script)
    assert found is not None
    document = client.get(urljoin(DOCS, found[1]))
    assert document.json()["openapi"].startswith("3.")
    assert "//" not in script
    assert "validatorUrl: null" in script  # otherwise a badge is fetched from swagger.io


@pytest.mark.parametrize("path", [DOCS, f"{DOCS}/start.js"])
def test_the_browser_is_told_to_load_nothing_from_elsewhere(
    client: httpx.Client, links: _Links, path: str
) -> None:
    policy = dict(
        part.strip().split(" ", 1)
        for part in client.get(path).headers["content-security-policy"].split(";")
    )
    assert policy.pop("default-src") == "'self'"
    assert policy.pop("img-src") == "'self' data:"
    assert {*policy.values()} == {"'none'"}
    assert not links.inline.strip()  # the policy would not let it run


def test_the_style_sheet_and_the_documents_name_no_other_host(
    client: httpx.Client, links: _Links
) -> None:
    (sheet,) = (address for address in links.addresses if address.endswith(".css"))
    for address in re.findall(r"url\(\"?([^)]*)", client.get(urljoin(DOCS, sheet)).text):
        assert address.startswith("data:")
    document = client.get(paths.OPENAPI).json()
    assert "servers" not in document


def test_the_script_is_a_swagger_ui_that_reads_openapi_3_1(
    client: httpx.Client, links: _Links
) -> None:
    (bundle,) = (address for address in links.addresses if address.endswith("bundle.js"))
    version = re.search(r'PACKAGE_VERSION:"(\d+)\.', client.get(urljoin(DOCS, bundle)).text)
    assert version is not None
    assert int(version[1]) >= 5


def test_files_are_not_sent_again_to_who_has_them(client: httpx.Client, links: _Links) -> None:
    (bundle,) = (address for address in links.addresses if address.endswith("bundle.js"))
    tag = client.get(urljoin(DOCS, bundle)).headers["etag"]
    again = client.get(urljoin(DOCS, bundle), headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/redoc", "/docs/oauth2-redirect", f"{DOCS}/files/../core.py"])
def test_nothing_else_is_served_beside_the_page(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404
