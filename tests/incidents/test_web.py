"""The page: who sees what, forms that only the page itself can send, and headers under which nothing runs."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web as aio

from guard.incidents.settings import Settings
from guard.incidents.web import HEADERS, Pages
from tests.conftest import ROOT_HERE
from tests.incidents.made import Site, exposure

ME = getpass.getuser()
Visit = Callable[..., Awaitable[tuple[int, str, Any]]]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, Settings(proxy_user=ME))
    made.fold(
        exposure("mine"), exposure("theirs", at_tree={"user": "bob", "uid": 4242}, path="/home/bob/secret-place"),
        exposure("both"), exposure("both", at_tree={"user": "bob", "uid": 4242}, path="/home/bob/other-place"),
    )  # fmt: skip
    yield made


def run(site: Site, test: Callable[[Visit], Awaitable[None]], token: str = "", unix: bool = True) -> None:
    """Serve the pages on a unix socket or loopback, and let a test visit them."""

    async def whole() -> None:
        runner = aio.AppRunner(Pages(site.desk, token).application())
        await runner.setup()
        path = str(Path(site.ledger.path).parent / "web.sock")
        if unix:
            await aio.UnixSite(runner, path).start()
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(path)
            base = "http://guard"
        else:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                await aio.SockSite(runner, listener.dup()).start()
                base = f"http://127.0.0.1:{listener.getsockname()[1]}"
            connector = aiohttp.TCPConnector()
        async with aiohttp.ClientSession(base, connector=connector, cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:

            async def visit(path: str, user: str | None = "alice", method: str = "GET", **more: Any) -> tuple[int, str, Any]:
                headers = {"X-Remote-User": user} if user is not None else {}
                async with client.request(method, path, headers=more.pop("headers", headers), **more) as answer:
                    return answer.status, await answer.text(), answer

            await test(visit)
        await runner.cleanup()

    asyncio.run(whole())


def test_a_holder_sees_their_own_and_nothing_else(site: Site) -> None:
    async def test(visit: Visit) -> None:
        status, text, _ = await visit("/")
        assert status == 200
        assert site.one("mine").id in text
        assert site.one("theirs").id not in text
        assert (await visit(f"/incident/{site.one('mine').id}"))[0] == 200
        other = await visit(f"/incident/{site.one('theirs').id}")
        nothing = await visit("/incident/0123456789ab")
        assert other[:2] == nothing[:2]
        assert other[0] == 404
        shared = (await visit(f"/incident/{site.one('both').id}"))[1]
        assert "other-place" not in shared
        assert "bob" not in shared
        assert (await visit("/all"))[0] == 404

    run(site, test)


def test_infosec_sees_all_and_it_is_recorded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    primary = grp.getgrgid(pwd.getpwuid(os.getuid()).pw_gid).gr_name
    site.desk.settings = Settings(proxy_user=ME, infosec_group=primary)

    async def test(visit: Visit) -> None:
        text = (await visit("/all", ME))[1]
        assert all(site.one(key).id in text for key in ("mine", "theirs", "both"))
        assert (await visit(f"/incident/{site.one('theirs').id}", ME))[0] == 200
        assert (await visit("/all", "alice"))[0] == 404

    run(site, test)
    reads = [what for (what,) in site.ledger.database.execute("SELECT what FROM access")]
    assert f"show {site.one('theirs').id}" in reads


def test_rotated_is_one_click_without_a_script(site: Site) -> None:
    async def test(visit: Visit) -> None:
        id_ = site.one("mine").id
        text = (await visit(f"/incident/{id_}"))[1]
        assert "<script" not in text
        form = re.search(r'name="form" value="([0-9a-f]+)"', text)
        assert form is not None
        status, after, answer = await visit(f"/incident/{id_}/rotated", method="POST", data={"form": form[1]})
        assert status == 200
        assert "claimed" in after
        assert str(answer.url).endswith(f"/incident/{id_}")

    run(site, test)
    assert [(a.verb, a.who) for a in site.one("mine").secret.actions] == [("claim", "alice")]


@pytest.mark.parametrize("form", ["", "0" * 64, None])
def test_a_form_from_elsewhere_changes_nothing(site: Site, form: str | None) -> None:
    async def test(visit: Visit) -> None:
        data = {"form": form} if form is not None else {}
        assert (await visit(f"/incident/{site.one('mine').id}/rotated", method="POST", data=data))[0] == 403

    run(site, test)
    assert site.one("mine").state == "open"


def test_a_form_of_one_visitor_is_none_of_anothers(site: Site) -> None:
    async def test(visit: Visit) -> None:
        id_ = site.one("both").id
        form = re.search(r'name="form" value="([0-9a-f]+)"', (await visit(f"/incident/{id_}", "bob"))[1])
        assert form is not None
        assert (await visit(f"/incident/{id_}/rotated", "alice", method="POST", data={"form": form[1]}))[0] == 403
        theirs = site.one("theirs").id
        assert (await visit(f"/incident/{theirs}/rotated", "alice", method="POST", data={"form": form[1]}))[0] == 404

    run(site, test)
    assert site.one("both").state == "open"


def test_a_header_counts_from_the_proxy_alone(site: Site) -> None:
    site.desk.settings = Settings(proxy_user="daemon" if ROOT_HERE else "root")

    async def test(visit: Visit) -> None:
        text = (await visit("/", "alice"))[1]  # from this very account, whatever it says
        assert site.one("mine").id not in text
        assert ME in text

    run(site, test)


def test_two_headers_are_none(site: Site) -> None:
    async def test(visit: Visit) -> None:
        from multidict import CIMultiDict

        headers = CIMultiDict([("X-Remote-User", "alice"), ("X-Remote-User", "bob")])
        assert (await visit("/", None, headers=headers))[0] == 401
        assert (await visit("/", None))[0] == 401
        assert (await visit("/", " "))[0] == 401

    run(site, test)


def test_a_name_or_a_token_that_is_no_text_is_refused_in_words(site: Site) -> None:
    async def raw(head: bytes, path: str) -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head + b"\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    async def named(_: Visit) -> None:
        path = str(Path(site.ledger.path).parent / "web.sock")
        assert b" 500 " not in (await raw(b"X-Remote-User: al\xffice", path)).split(b"\r\n")[0]

    async def token(_: Visit) -> None:
        path = str(Path(site.ledger.path).parent / "web.sock")
        assert b" 500 " not in (await raw(b"Cookie: guard_token=\xff", path)).split(b"\r\n")[0]

    run(site, named)
    run(site, token, token="t" * 32)


def test_on_loopback_the_token_is_asked_always(site: Site) -> None:
    async def test(visit: Visit) -> None:
        assert (await visit("/", "alice"))[0] == 401
        assert (await visit("/?token=wrong", "alice"))[0] == 401
        status, _, answer = await visit("/?token=right-token", None)
        assert status == 200
        assert "token" not in str(answer.url)
        cookie = answer.history[0].cookies["guard_token"]
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        assert (await visit("/", None))[0] == 200

    run(site, test, token="right-token", unix=False)  # noqa: S106


def test_every_answer_carries_the_strict_headers(site: Site) -> None:
    async def test(visit: Visit) -> None:
        for path, user in (("/", "alice"), ("/", None), ("/nothing", "alice"), ("/style.css", "alice"), ("/about", "alice")):
            answer = (await visit(path, user))[2]
            assert {name: answer.headers.get(name) for name in HEADERS} == dict(HEADERS)

    run(site, test)
    assert "script-src" not in HEADERS["Content-Security-Policy"]
    assert "'unsafe-inline'" not in HEADERS["Content-Security-Policy"]


def test_names_and_paths_stay_text(site: Site) -> None:
    site.fold(exposure("x", path="/home/<img src=x onerror=alert(1)>", at_tree={"user": "<b>eve</b>", "uid": 3}))

    async def test(visit: Visit) -> None:
        for path in ("/", f"/incident/{site.one('x').id}", "/about"):
            text = (await visit(path, "<b>eve</b>"))[1]
            assert "<img" not in text
            assert "<b>eve" not in text
            assert "&lt;b&gt;eve" in text

    run(site, test)
