"""The small page: an account holder's exposed keys, "I rotated it", and what is stored about them.

Who asks is known in one of three ways, and in no other:

- on the unix socket, from the proxy's uid: the visitor that the proxy names in its header;
- on the unix socket, from any other uid: that account (SO_PEERCRED), whatever headers say;
- on loopback: who holds the token of this run, which is who started it.

No script is served; every page works as it is. Forms carry a token bound to the visitor, so that no other site's page
can send them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import pwd
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from guard.errors import GuardError, StateError
from guard.events.peers import peer_of
from guard.incidents import choose
from guard.incidents.accounts import Account
from guard.incidents.audience import WORDS
from guard.incidents.desk import Desk
from guard.incidents.kinds import after
from guard.incidents.ledger import Secret
from guard.incidents.privacy import stored
from guard.incidents.report.html import asset, environment
from guard.incidents.report.layout import Page, case
from guard.incidents.service import owned, owns, shown
from guard.incidents.workflow import CLOSED, Incident, assess
from guard.redact.rules.advice import advice_for
from guard.redact.server import listen

SOCKET: Final = "web.sock"
COOKIE: Final = "guard_token"
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""On every answer: nothing runs, nothing is framed, nothing is kept (CSP3, Fetch)."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks: an account, and whether they are InfoSec."""

    user: str
    uid: int
    infosec: bool


VISITOR: Final = web.RequestKey("visitor", Visitor)


class Pages:
    """Serves the pages.

    Args:
        desk: the site's.
        token: of this run, for loopback; "" on the unix socket.
        accounts: the account map.
    """

    def __init__(self, desk: Desk, token: str = "", accounts: Mapping[str, Account] | None = None) -> None:
        self._desk = desk
        self._token = token
        self._accounts = accounts or {}
        self._secret = secrets.token_bytes(32)

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._guarded], client_max_size=8192)
        app.add_routes(
            [
                web.get("/", self._mine),
                web.get("/all", self._all),
                web.get("/about", self._about),
                web.get("/style.css", self._style),
                web.get("/incident/{id:[0-9a-f]{4,64}}", self._one),
                web.post("/incident/{id:[0-9a-f]{4,64}}/rotated", self._rotated),
            ]
        )
        return app

    # --- who asks

    def _visitor(self, request: web.Request) -> Visitor | None:
        transport = request.transport
        peer = transport.get_extra_info("socket") if transport is not None else None
        if self._token:
            given = request.cookies.get(COOKIE, "")
            owner = pwd.getpwuid(os.geteuid()).pw_name
            return self._named(owner, infosec=True) if self._holds(given) else None
        if peer is None or peer.family != socket.AF_UNIX:
            return None
        uid = peer_of(peer).uid
        proxy = self._desk.settings.proxy_user
        if proxy and uid == _uid(proxy):
            # Two headers of one name are a smuggled one: neither counts.
            values = request.headers.getall(self._desk.settings.user_header, [])
            return self._named(values[0].strip()) if len(values) == 1 and values[0].strip() else None
        try:
            return self._named(pwd.getpwuid(uid).pw_name, infosec=uid == 0)
        except KeyError:
            return None

    def _holds(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _named(self, user: str, *, infosec: bool = False) -> Visitor:
        try:
            account = pwd.getpwnam(user)
        except KeyError:
            return Visitor(user, -1, infosec)
        return Visitor(user, account.pw_uid, infosec or _in_group(account, self._desk.settings.infosec_group))

    def _form_token(self, visitor: Visitor) -> str:
        return hmac.new(self._secret, visitor.user.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Know the visitor before anything else, and put the headers on every answer."""
        response: web.StreamResponse
        try:
            if self._token and self._holds(request.query.get("token", "")):
                # Out of the address bar and into a cookie that no script and no other site can send.
                response = _see(request.path)
                response.set_cookie(COOKIE, self._token, httponly=True, samesite="Strict", path="/")
            elif (visitor := self._visitor(request)) is None:
                text = "The site's proxy has not said who you are, or the token is missing."
                response = self._page("message.html", None, 401, title="Who are you?", text=text)
            else:
                request[VISITOR] = visitor
                response = await handler(request)
        except web.HTTPException as error:
            response = self._page("message.html", request.get(VISITOR), error.status, title=error.reason,
                                  text="There is no such page of yours.")  # fmt: skip
        except UnicodeError:
            response = self._page("message.html", None, 400, title="Not done", text="A name or a token is no text.")
        except GuardError as error:
            response = self._page("message.html", request.get(VISITOR), 409, title="Not done", text=str(error))
        response.headers.update(HEADERS)
        return response

    # --- the pages

    async def _style(self, _: web.Request) -> web.Response:
        return web.Response(text=asset("style.css"), content_type="text/css")

    async def _mine(self, request: web.Request) -> web.Response:
        visitor = request[VISITOR]
        return self._list(visitor, owned(self._desk, visitor.uid, visitor.user), "Your exposed keys")

    async def _all(self, request: web.Request) -> web.Response:
        visitor = request[VISITOR]
        if not visitor.infosec:
            raise web.HTTPNotFound
        found = choose.every(self._desk.ledger, self._desk.settings, choose.Filter())
        self._desk.ledger.note_access(visitor.user, f"page of {len(found)}")
        return self._list(visitor, found, "Everybody's exposed keys")

    async def _one(self, request: web.Request) -> web.Response:
        visitor, incident = self._asked(request)
        own = owns(incident.secret, visitor.uid, visitor.user)
        if visitor.infosec:  # who is shown others' places too
            self._desk.ledger.note_access(visitor.user, f"show {incident.id}")
        row = shown(incident, visitor.uid, visitor.user)
        timeline: Page | None = case(incident, self._desk.ledger.now()) if visitor.infosec else None
        return self._page(
            "incident.html", visitor, incident=row, timeline=timeline, own=own and incident.state not in CLOSED,
            words=WORDS, advice=advice_for(incident.kind), after=after(incident.kind),
            form=self._form_token(visitor), when=_when,
        )  # fmt: skip

    async def _rotated(self, request: web.Request) -> web.StreamResponse:
        visitor, incident = self._asked(request)
        if not owns(incident.secret, visitor.uid, visitor.user):
            raise web.HTTPNotFound
        form = await request.post()
        if not hmac.compare_digest(str(form.get("form", "")).encode(), self._form_token(visitor).encode()):
            return self._page("message.html", visitor, 403, title="Not done",
                              text="This form is too old, or another page's. Go back and try again.")  # fmt: skip
        self._desk.by(visitor.user).decide([incident], "claim", "said on the page")
        return _see(f"../{incident.id}")

    async def _about(self, request: web.Request) -> web.Response:
        visitor = request[VISITOR]
        return self._page("about.html", visitor, rows=stored(self._desk.ledger, visitor.user, visitor.uid))

    def _asked(self, request: web.Request) -> tuple[Visitor, Incident]:
        """Return the visitor and the incident; one answer for "none" and "another's"."""
        visitor = request[VISITOR]
        found = self._desk.ledger.find(request.match_info["id"])
        matches = [s for s in found if s.sightings and (visitor.infosec or owns(s, visitor.uid, visitor.user))]
        if len(matches) != 1:
            raise web.HTTPNotFound
        return visitor, self._assess(matches[0])

    def _assess(self, secret: Secret) -> Incident:
        return assess(secret, self._desk.settings, self._desk.ledger.now())

    def _list(self, visitor: Visitor, rows: list[Incident], title: str) -> web.Response:
        return self._page("incidents.html", visitor, rows=rows, title=title, words=WORDS, when=_when,
                          closed=CLOSED)  # fmt: skip

    def _page(self, name: str, visitor: Visitor | None, status: int = 200, **values: object) -> web.Response:
        text = environment().get_template(name).render(visitor=visitor, contact=self._desk.settings.contact, **values)
        return web.Response(text=text, status=status, content_type="text/html")


def _see(location: str) -> web.Response:
    """Answer with another page (RFC 9110 15.4.4)."""
    return web.Response(status=303, headers={"Location": location})


def _uid(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return -2


def _in_group(account: pwd.struct_passwd, group: str) -> bool:
    import grp

    try:
        wanted = grp.getgrnam(group).gr_gid if group else -1
    except KeyError:
        return False
    return wanted in os.getgrouplist(account.pw_name, account.pw_gid) if wanted >= 0 else False


def _when(moment: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment / 1e6 if moment > 1e12 else moment, UTC).strftime("%Y-%m-%d %H:%M")


def serve(desk: Desk, path: str, port: int, accounts: Mapping[str, Account], ready: Callable[[str], None]) -> None:
    """Serve the pages until SIGTERM or SIGINT.

    Args:
        desk: the site's.
        path: of the unix socket; "" for loopback.
        port: on 127.0.0.1, 0 for any; taken when there is no path.
        accounts: the account map.
        ready: told the address once it listens.

    Raises:
        StateError: it cannot listen there.
    """
    token = "" if path else secrets.token_urlsafe(32)
    app = Pages(desk, token, accounts).application()
    try:
        listener = listen(path, everybody=True) if path else socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise StateError(f"cannot listen: {error}", "stop what listens there, or name another place") from None
    where = path or f"http://127.0.0.1:{listener.getsockname()[1]}/?token={token}"

    async def tell(_: web.Application) -> None:
        ready(where)

    app.on_startup.append(tell)
    try:
        web.run_app(app, sock=listener, print=lambda *_: None, access_log=None, handle_signals=True)
    finally:
        if path:
            os.unlink(path)
