"""Answers of everything that stands between a machine and its store: a captive portal, a proxy, a web server."""

from __future__ import annotations

from tests.fakes.answering import Answer

LOGIN = "http://login.example/"
_PAGE = {"Content-Type": "text/html"}

PORTALS = {
    "200": Answer(200, _PAGE, b"<html><body>log in</body></html>"),
    "200 of a static file": Answer(200, {**_PAGE, "ETag": '"5f3c"'}, b"<html><body>log in</body></html>"),
    "200 without a body": Answer(200),
    "200 with broken HTML": Answer(200, _PAGE, b"<html>log in<br>"),
    "203": Answer(203, _PAGE, b"<html><body>log in</body></html>"),
    "204": Answer(204),
    "302": Answer(302, {**_PAGE, "Location": f"{LOGIN}?from=here"}, b"<html>moved</html>"),
    "301": Answer(301, {"Location": LOGIN}),
    "307": Answer(307, {"Location": LOGIN}),
    "308": Answer(308, {"Location": LOGIN}),
    "302 to nowhere": Answer(302),
    "401": Answer(401, _PAGE, b"<html><body>log in</body></html>"),
    "403": Answer(403, _PAGE, b"<html>log in<br>"),
    "404": Answer(404, _PAGE, b"<html><body>no such page</body></html>"),
    "404 without a body": Answer(404),
    "407": Answer(407, {"Proxy-Authenticate": "Basic"}),
    "412": Answer(412, _PAGE, b"<html><body>no</body></html>"),
    "416": Answer(416, _PAGE, b"<html><body>no</body></html>"),
    "511": Answer(511, _PAGE, b"<html><body>log in</body></html>"),
}
