"""Mistakes in an endpoint's scheme, host name or certificates, with advice for each: no retry mends them.

OpenSSL's own numbers and the first bytes of an answer decide, never the text of a message.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress

from urllib3.util.ssl_match_hostname import CertificateError

#: Reasons of OpenSSL if the first answer to its hello is no TLS.
_NO_TLS = {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}
#: The first byte of a TLS record that answers a hello: an alert, a handshake (RFC 8446, 5.1).
_RECORDS = (b"\x15", b"\x16")

#: Advice by the number of X509_verify_cert_error_string(3).
_CLOCK = "; it is not valid at this time: renew it, or set this machine's clock (chrony, timedatectl set-ntp true) [SG306]"
_NAME = "; it is for another name: write the endpoint with a name that the certificate has [SG306]"
_CERTIFICATES = {9: _CLOCK, 10: _CLOCK, 62: _NAME, 64: _NAME}


class SettingMistake(OSError):
    """A request that can never work with these settings; the text says why, and what to do."""


def check_certificates(path: str) -> None:
    """Refuse a file of certificates that cannot be used.

    Raises:
        SettingMistake: the file is missing, unreadable, or has no certificate in it.
    """
    try:
        where = {"capath": path} if os.path.isdir(path) else {"cafile": path}
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(**where)
    except OSError as error:
        what = "it has no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise SettingMistake(
            f"the certificates to trust cannot be read from {path}: {what}; correct ca=FILE in the store's URL, or the "
            "variable that names the file (AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE) [SG306]"
        ) from error


def check_handshake(host: str, port: int | None, error: ssl.SSLError) -> None:
    """Refuse a port that answers TLS's hello with something else.

    Call it for errors of the handshake only: later, damaged bytes have the same reasons.

    Raises:
        SettingMistake: the port speaks no TLS.
    """
    if error.reason in _NO_TLS:
        raise SettingMistake(
            f"port {port} of {host} speaks no TLS: write http:// in place of https://, or its TLS port [SG308]"
        ) from error


def check_plain(host: str, port: int, timeout: float) -> None:
    """Refuse a port that speaks TLS, after it answered plain HTTP with no HTTP, or with 400.

    Servers answer in many ways: nginx and Go with a 400, others with an alert, most close the connection. So this sends
    TLS's hello once, and reads the first byte of the answer.

    Raises:
        SettingMistake: the port speaks TLS.
    """
    hello = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with suppress(ssl.SSLWantReadError):  # it wants the answer to its hello
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname=host).do_handshake()
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(hello.read())
            first = connection.recv(1)
    except OSError:  # nothing is known
        return
    if first in _RECORDS:
        raise SettingMistake(
            f"port {port} of {host} speaks TLS: write https:// in place of http:// in the endpoint [SG308]"
        )


def mistake(
    error: BaseException,
    trusting: str = "; the option ca=FILE in the store's URL names a certificate to trust [SG306]",
) -> str | None:
    """Return what makes an error a mistake of settings, with advice; None if it is another failure.

    The outermost type tells nothing. Over TLS a broken connection is an `ssl.SSLError` as well, and urllib3, `requests`
    and botocore wrap each of them in a type of their own.

    Args:
        error: the failure of a request.
        trusting: the advice how to trust a certificate.
    """
    for each in causes(error):
        if isinstance(each, SettingMistake):
            return str(each)
        if isinstance(each, CertificateError):
            return f"{each}{_NAME}"
        if isinstance(each, ssl.SSLCertVerificationError):
            return f"{each}{_CERTIFICATES.get(getattr(each, 'verify_code', 0), trusting)}"
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and every error in it or behind it, each once."""
    met: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if any(each is old for old in met):
            continue
        met.append(each)
        yield each
        behind = (*each.args, getattr(each, "reason", None), each.__cause__, each.__context__)
        waiting += [one for one in behind if isinstance(one, BaseException)]
