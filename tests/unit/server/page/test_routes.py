"""The page is served to browsers, and only from what the package holds."""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import urljoin

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from moeinf.server.page.page_routes import CONTENT_SECURITY_POLICY, MCP_WORKER, MCP_WORKER_POLICY, page_routes

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PATHS = [route.path for route in page_routes() if route.path != "/"]


@pytest.fixture
def client() -> TestClient:
    return TestClient(Starlette(routes=page_routes()))


def test_a_browser_gets_the_page(client: TestClient) -> None:
    answer = client.get("/", headers=BROWSER)
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.text.startswith("<!doctype html>")


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
def test_other_clients_find_what_they_probe_for(client: TestClient, accept: str) -> None:
    answer = client.get("/", headers={"Accept": accept})
    assert (answer.text, answer.headers["content-type"]) == ("Ollama is running", "text/plain; charset=utf-8")
    assert answer.headers["vary"] == "Accept", "a cache must not give the one the other's answer"
    assert client.head("/", headers={"Accept": accept}).status_code == 200


@pytest.mark.parametrize("path", ["/", *PATHS])
def test_every_file_comes_under_the_policy(client: TestClient, path: str) -> None:
    headers = client.get(path, headers=BROWSER).headers
    own = MCP_WORKER_POLICY if path == f"/page/{MCP_WORKER}" else CONTENT_SECURITY_POLICY
    assert headers["content-security-policy"] == own
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_the_policy_lets_in_nothing_from_outside() -> None:
    rules = dict(rule.split(" ", 1) for rule in CONTENT_SECURITY_POLICY.split("; "))
    assert rules["default-src"] == "'none'" and rules["script-src"] == "'self'" == rules["connect-src"]
    assert not re.search(r"unsafe|https?:|\*", CONTENT_SECURITY_POLICY)


def test_the_worker_that_asks_other_servers_loads_nothing(client: TestClient) -> None:
    assert "unsafe" not in MCP_WORKER_POLICY and "script-src" not in MCP_WORKER_POLICY
    assert "import" not in re.sub(r"//.*", "", client.get(f"/page/{MCP_WORKER}").text)


@pytest.mark.parametrize("path", ["/", *PATHS])
def test_a_file_that_a_browser_has_is_not_sent_again(client: TestClient, path: str) -> None:
    first = client.get(path, headers=BROWSER)
    again = client.get(path, headers={**BROWSER, "If-None-Match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"") and again.headers["etag"] == first.headers["etag"]
    assert client.get(path, headers={**BROWSER, "If-None-Match": '"other"'}).content == first.content


@pytest.mark.parametrize(
    "path", ["/page/index.html", "/page/", "/page/%2e%2e/live.py", "/page/../live.py", "/page/x.js"]
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    assert client.get(path, headers=BROWSER).status_code == 404


@pytest.mark.parametrize("path", ["/", *PATHS])
def test_a_file_needs_no_other_than_those_served(client: TestClient, path: str) -> None:
    text = client.get(path, headers=BROWSER).text
    loaded = re.findall(r'(?:from|import) "(\.[^"]+)"|(?:src|href)="(/page/[^"]+)"', text)
    assert {urljoin(path, "".join(names)) for names in loaded} <= set(PATHS)
    assert not re.search(r"style=\"|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)


def test_a_person_can_survey_the_files() -> None:
    folders = Counter(path.rpartition("/")[0] for path in PATHS)
    assert len(folders) < 15 and max(folders.values()) < 15
