"""Detection of secrets in text, so that spotguard writes none where others can read it: user-data, a store, a log.

Three things give a secret away: its shape (the prefix that its issuer uses), its place (the password in a URL, curl's
`-u`), or its name (`--api-key …`, `HF_TOKEN=…`). `$NAME` in the place of a secret is not one. If nothing expands the
variable, `bootstrap.variables` refuses it.

A password may be any word, so its name is enough. A token is made by a machine: a word after `--token` is a tokenizer's.

Texts of errors come here before a failed run is saved, and may be of any form. So each pattern has bounds, and takes milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256

#: The start of a value written out in full: neither a variable or command substitution ($…, `…`) nor the next option.
_WRITTEN = r"""["']?(?P<secret>[^\s$`"'&|;)-])"""

#: The space between the words of a .netrc, which a printf may write.
_BLANK = r"(?:\s|\\n){1,20}+"

_SHAPES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", "an AWS access key"),
        (rf"(?i)\baws_secret_access_key[\s=:]+{_WRITTEN}", "an AWS secret key"),
        (r"(?i)\bAccountKey=", "the key of an Azure storage account"),
        (r"(?i)\bsig=[0-9a-z%+/]{20,}", "an Azure SAS"),
        (r"(?i)\bX-(?:Amz|Goog)-Signature=", "a signed URL"),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----", "a private key"),
        (r"""://(?P<secret>[^\s/@:"']*:[^\s/@$"'][^\s/"']*)@""", "a password in a URL"),
        # A user name alone is not a secret (https://me@dev.azure.com); a token in its place is long, and has digits.
        (r"""://(?P<secret>(?=[^\s/@:]*[0-9])[A-Za-z0-9_-]{20,})@""", "a password in a URL"),
        (r"\b(?:gh[pousr]_|github_pat_|glpat-)[0-9A-Za-z_-]{16,}", "a token"),
        (r"\b(?:hf_|npm_|sk-(?:proj-|ant-)?)(?=[A-Za-z]*[0-9])[0-9A-Za-z]{16,}", "a token"),
        (r"\bhf_[A-Za-z]{30,}", "a token"),
        (
            r"\b(?:xox[abpr]-|pypi-|dckr_pat_|AIza|sk-(?:proj|ant|svcacct)-|GOCSPX-|ya29\.|nvapi-)[0-9A-Za-z_-]{20,}",
            "a token",
        ),
        (r"\beyJ[0-9A-Za-z_-]{8,2000}\.eyJ[0-9A-Za-z_-]{8,}", "a token"),
        (
            rf"(?i)\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token|apikey|digest|negotiate)\s+{_WRITTEN}",
            "a header with credentials",
        ),
        (r"(?i)\bbearer\s+(?=[\w.~+/-]{0,200}[0-9])(?P<secret>[\w.~+/-]{16,})", "a header with credentials"),
        (
            rf"(?i)\b(?:x-[a-z-]{{0,60}}(?:key|token)|(?:private|job)-token)\s*:\s*{_WRITTEN}",
            "a header with credentials",
        ),
        (
            r"""(?i)\bcurl\b[^\n|;&]{0,500}\s(?:-u\s{0,9}|--(?:proxy-)?user[\s=]{1,9})["']?(?P<secret>[^\s:"'$]{1,200}:[^\s$"'])""",
            "a password",
        ),
        (rf"\bwandb\s+login\s+(?:--?[\w-]{{1,60}}(?:=\S{{1,200}})?\s+){{0,8}}{_WRITTEN}", "a key of wandb's"),
        # A library's, as in `wandb.login(key='…')`.
        (
            r"""\blogin\((?:[^()\n]{0,200}\b(?:token|key|password)\s{0,9}=)?\s{0,9}["'](?P<secret>[^\s"'$])""",
            "a secret of a login",
        ),
        (rf"(?i)(?<=[?&])(?:(?:access|auth|id|refresh)_)?token={_WRITTEN}", "a secret by its name"),
        # docker's, az's, helm's …
        (rf"\slogin(?=\s)[^\n|;&]{{0,500}}\s-p\s{{0,9}}{_WRITTEN}", "a password"),
        (rf"\bsshpass\s+-p\s*{_WRITTEN}", "a password"),
        (rf"\b(?:mysql\w*|mariadb[\w-]*|7z[ar]?)(?=\s)[^\n|;&]{{0,500}}\s-p{_WRITTEN}", "a password"),
        (
            rf"\b(?:sqlcmd(?=\s)[^\n|;&]{{0,500}}\s-P|redis-cli(?=\s)[^\n|;&]{{0,500}}\s-a)\s{{0,9}}{_WRITTEN}",
            "a password",
        ),
        (
            rf"\bmachine{_BLANK}\S{{1,200}}{_BLANK}login{_BLANK}\S{{1,200}}{_BLANK}password{_BLANK}{_WRITTEN}",
            "a password",
        ),
        # Slack's, Discord's and others': whoever has the last part may post.
        (r"(?i)://hooks\.slack(?:-gov)?\.com/\w+/[\w-]+/[\w-]+", "a webhook's URL"),
        # Telegram's bots: their token is a part of each URL ("Authorizing your bot", core.telegram.org/bots/api).
        (r"(?P<secret>(?<=/bot)[0-9]{5,16}:[\w-]{20,}|\b[0-9]{5,16}:AA[\w-]{33})", "a token"),
        (
            r"""(?i)(?:(?<=http)|(?<=https))://[^\s"'$]{0,100}hooks?[./][^\s"'$]{0,100}/[\w-]{16,}""",
            "a webhook's URL",
        ),
    )
)

#: A name and its value. The value is in a lookahead, so that the next name may begin inside it.
_GIVEN = re.compile(
    r"""(?<![\w$-])(?<!\$\{)(?P<dashes>-{0,2})(?P<name>[A-Za-z_][\w.-]{0,100})(?P<quote>["']?)"""
    r"""(?P<between>\s{0,9}=\s{0,9}|\s{0,9}:\s{0,9}|\s{1,9})(?=["']?(?P<value>[^\s"';]{1,256}))"""
)
#: A name in a text, and what stands before its value. A list may hold both ('--password', '…'), a shell's command an option.
_IN_TEXT = re.compile(
    r"""(?<![\w$])(?P<dashes>-{1,2})?(?P<name>[A-Za-z_][\w.-]{0,100})"""
    r"""(?P<between>\\?["']?\s{0,9}[=:]\s{0,9}|["'],\s{1,9}|(?(dashes)\s{1,9}|(?!)))"""
)
#: The value: in quotes it may hold spaces and lines. A text that was cut may have lost the second quote.
_VALUE = re.compile(
    r"""[bBrRuU]{0,2}(?:"(?:[^"\\]|\\.)++"|'(?:[^'\\]|\\.)++'|\\"[^"\\]++\\"|\\'[^'\\]++\\'|\\?["'][^"'\n][^\n]*)"""
    r"""|[^\s"';&]+"""
)
#: The quotes around it.
_QUOTES = re.compile(r"""[bBrRuU]{0,2}\\?["']|\\?["']\Z""")
#: A private key in a text, whose lines have no form of their own; and the rest of a secret whose begin is known.
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)", re.DOTALL
)
_REST = re.compile(r"""[^\s"';&]*""")
#: Endings of a password's name. One of several has a digit.
_PASSWORD = re.compile(
    r"(?:pass(?:word|wd|phrase|code)_?[0-9]?|(?:^|_)(?:pwd?|(?:db|ftp|smtp|user)_?(?:pass|pw)))$"
)
#: Endings of another secret's name. A name that continues (`--token-type`, `--api-key-file`) is another value's.
_SECRET = re.compile(
    r"(?:secret|(?:api|secret|access|private|storage|account|auth|signing|licen[cs]e)_?key)_?[0-9]?$|"
    + _PASSWORD.pattern
)
#: Words behind a password's name that are of a sentence or a type, and not a password.
_NO_PASSWORD = frozenset(
    [
        "blank",
        "changed",
        "denied",
        "disabled",
        "empty",
        "enabled",
        "error",
        "expected",
        "expired",
        "failed",
        "failure",
        "false",
        "forbidden",
        "given",
        "hidden",
        "incorrect",
        "invalid",
        "locked",
        "masked",
        "mismatch",
        "missing",
        "no",
        "none",
        "null",
        "ok",
        "optional",
        "prompt",
        "redacted",
        "refused",
        "rejected",
        "required",
        "reset",
        "secret",
        "set",
        "str",
        "string",
        "text",
        "true",
        "unauthorized",
        "undefined",
        "unknown",
        "unset",
        "unsupported",
        "weak",
        "wrong",
        "yes",
        "any",
        "bytes",
        "secretstr",
    ]
)
#: The end of a line or of an entry behind an unquoted value, as in YAML's `password: swordfish`.
_ENDS = re.compile(r"(?<=[,)}\]])|[ \t]{0,9}(?:[;\r\n]|\Z)|[ \t]{1,9}#")
#: Characters of a value by which it is judged: each name in a text of names has the whole rest for its value.
_JUDGED = 256
#: Endings that may also name a tokenizer's word or a count. They count as a secret's if the name is in capitals, as in the
#: environment, or if the value looks made by a machine.
_PERHAPS = re.compile(r"(?:token|(?:^|_)pass)$")
_PERHAPS_OF_OPTION = re.compile(r"(?:^|_)(?:pass|key|(?P<login>cred(?:ential)?s?|auth)|bearer|jwt|pat|sas)$")
#: Names whose value is a secret in what is only shown. User-data may have a header, whose value is made from a variable.
_SHOWN = re.compile(
    r"(?:^|_)(?:(?:proxy_)?authorization|cookie|t?otp|(?:mfa|otp)_code|session_id|passkey|mnemonic|(?:seed|recovery)_phrase)$"
)
#: The same, for an option of a command.
_SHOWN_OF_OPTION = re.compile(
    r"^(?:key|auth|cred(?:ential)?s?|bearer|jwt|pat|sas|p(?:ss|s)?wd|passw)$|(?:encryption|master|session|ssh|host)_key$|"
    r"(?:api|access|secret)(?:token|key)$|" + _SHOWN.pattern
)
#: Values of these that are no secret.
_METHOD_OR_FILE = re.compile(
    r"(?i).*/.*|.*\.[a-z]{2,5}|auto|default|env|basic|digest|bearer|token|kerberos|negotiate|ntlm|"
    r"service_account|(?:oauth|kerberos)[0-9][a-z_-]{0,12}|[<\[].*[>\]]"
)
#: The value of a login: a user's name and a password.
_LOGIN = re.compile(r"[^\s:/]+:[^\s:/]+")
_MADE = re.compile(
    r"(?:(?=.*[0-9])(?=.*[A-Za-z])[\w.~+/:-]{8,}|(?=.*[a-z])(?=.*[A-Z])[\w.~+/:-]{16,})=*(?:[&|>)].*)?"
)
#: An option's value that looks made by a machine or for a machine. A name of a file is none, nor a place in a store, nor a port.
_MADE_FOR_OPTION = re.compile(
    r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])(?![0-9]+:)(?!.*\.[a-z]{2,5}\Z)[^\s/]{6,}|(?:(?=.*[a-z])(?=.*[A-Z])[\w.~+/:-]{16,})=*"
)
#: A command whose `--secret=NAME` names a secret of Google's Secret Manager.
_GCLOUD = re.compile(r"(?:\A|[\s/|;&(])gcloud\s[^\n|;&]*\Z")
#: Names that are not secrets: EOS_TOKEN is a tokenizer's word, MAX_TOKEN a count, a forward pass is no password, and a sort key
#: is the name of a column.
_OF_TEXT = re.compile(
    r"(?:^|_)(?:max|min|num|n|per|new|eos|bos|pad|unk|sep|cls|mask|stop|start|end|next|special|image|audio|video)_?token$"
    r"|(?:forward|backward|low|high|band)_pass$"
    r"|(?:^|_)(?:sort|group|partition|index|primary|foreign|public|cache|image|audio|video|text|caption|label|target|input|output)_key$"
)
#: Values that are not tokens: a count, a truth value, a mark, a protocol, a layer's name. (A password may be one of them.)
_NO_TOKEN = re.compile(
    r"(?i)(?:oauth|kerberos)[0-9][a-z_-]{0,12}|0?(?:\.[0-9]+)?|[1-9][0-9_.]{0,8}[kmg]?|true|false|yes|no|none|null|[<\[].*[>\]]|(?-i:[a-z][a-z0-9_]*(?:\.[a-z0-9_]+){2,})"
)
#: Values that only point to a secret: its location, or code that reads it.
_ELSEWHERE = re.compile(
    r"[$`-]|~/|\./|/(?:dev|etc|home|mnt|opt|proc|root|run|srv|tmp|usr|var)/|(?:os\.)?(?:environ|getenv)\b"
)

#: The replacement for a secret; and the form in which the replacement is checked, as a variable, which is not a secret.
_LEFT_OUT, _VARIABLE = "…", "$X"
#: Number of a command's words that are checked together: `docker login -u me -p …` has six.
_TOGETHER = 16
#: The name in a word of the form name=value.
_NAMED = re.compile(r"\A[-+~]{0,2}[\w.-]+=")
#: The user part of a URL, up to the last @, because a password may hold any character.
_USER = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://).+@", re.DOTALL)


def secrets_in(text: str) -> Iterator[str]:
    """Yield the kind of each secret in `text`."""
    yield from (name for looks, name in _SHAPES if looks.search(text))
    if any(map(_is_given_one, _GIVEN.finditer(text))):
        yield "a secret by its name"


def looks_secret(text: str) -> bool:
    """Return whether `text` holds a secret."""
    return next(secrets_in(text), None) is not None


def redacted(command: Sequence[str]) -> list[str]:
    """Return the words of a command, with … for each secret: for its value if it has a name, else for the whole word."""
    kept: list[str] = []
    before: list[str] = []
    for word in command:
        for candidate in _without(word):
            text = candidate.replace(_LEFT_OUT, _VARIABLE)
            together = " ".join([*before[-_TOGETHER:], text])
            if not looks_secret(together) and not any(map(_is_option_of_one, _GIVEN.finditer(together))):
                break
        kept.append(candidate)
        # A long word is no option and no program: as a part of what stands before others it would be read 16 times.
        before.append(text if len(text) <= _JUDGED else _VARIABLE)
    return kept


def fingerprints(command: Sequence[str]) -> list[str]:
    """Return the redacted words, each with a hash of what is hidden beside its secret: equal for commands that differ in secrets."""
    return [
        shown
        + ("" if rest in (word, shown) else f"#{sha256(rest.encode(errors='replace')).hexdigest()[:16]}")
        for word, shown in zip(command, redacted(command), strict=True)
        for rest in [shown if shown == word or _is_all_secret(word) else redacted_text(word)]
    ]


def _is_all_secret(word: str) -> bool:
    """Return whether a word is a secret's name and value. No quotes mark the end of a value with spaces."""
    named = _NAMED.match(word)
    return named is not None and _may_be_secret(_plain(named[0].strip("-+~=")))


def redacted_text(text: str) -> str:
    """Return a text with … for each secret: an error's message, a line for people. Its words are not those of a command."""
    kept, at = [], 0
    for begin, end in sorted(_places_of_secrets(text)):
        if begin >= at:
            kept += [text[at:begin], _LEFT_OUT]
        at = max(at, end)
    return "".join([*kept, text[at:]])


def _places_of_secrets(text: str) -> Iterator[tuple[int, int]]:
    yield from (match.span() for match in _KEY_BLOCK.finditer(text))
    for looks, _ in _SHAPES:
        named, end = "secret" in looks.groupindex, 0
        for match in looks.finditer(text):
            if match.start() >= end:
                rest = None if named and match[0].endswith("@") else _REST.match(text, match.end())
                end = match.end("secret") if rest is None else rest.end()
                yield match.start("secret" if named else 0), end
    end = 0
    for match in _IN_TEXT.finditer(text):
        name = _plain(match["name"])
        if match.start() >= end and (_may_be_secret(name) or _SHOWN.search(name)):
            first = _VALUE.match(text, match.end(), match.end() + _JUDGED)
            if first is None or not _is_given_in_text(match, first):
                continue
            if (value := _VALUE.match(text, match.end())) is not None:
                end = value.end()
                yield value.span()


def _is_given_in_text(match: re.Match[str], value: re.Match[str]) -> bool:
    inner = _QUOTES.sub("", value[0])
    if _SHOWN.search(_plain(match["name"])):
        if _is_none(inner):
            return False
    elif not _is_secret(match["name"], inner):
        return False
    # Else it is a sentence, as in "password: expected a text" and "--password is missing".
    sentence = match["between"].strip() in ("", ":") and inner == value[0]
    return not sentence or any(map(str.isdigit, inner)) or _is_entry(match, value)


def _is_entry(match: re.Match[str], value: re.Match[str]) -> bool:
    """Return whether an unquoted word is the whole value of a password, as in YAML. A word that tells what is wrong is not."""
    name = _plain(match["name"])
    if (
        ":" not in match["between"]
        or "\n" in match["between"]
        or not (_PASSWORD.search(name) or _SHOWN.search(name))
    ):
        return False
    return not _is_none(value[0]) and _ENDS.match(value.string, value.end()) is not None


def _without(word: str) -> Iterator[str]:
    """Yield the word, then versions of it with ever more left out."""
    yield word
    if named := _NAMED.match(word):
        yield f"{named[0]}{_LEFT_OUT}"
    yield _USER.sub(rf"\1{_LEFT_OUT}@", word)
    yield _LEFT_OUT


def _is_given_one(match: re.Match[str]) -> bool:
    name, value = match["name"], match["value"].rstrip(",)}")
    between = match["between"].strip() or " "
    if between == " " and not match["dashes"]:
        return False  # two separate words
    if between == ":" and not (match["quote"] or match["dashes"] or _MADE.fullmatch(value)):
        before = match.string[max(0, match.start() - _JUDGED) : match.start()].rstrip()
        if "{" not in before or before[-1] not in "{,":
            return False  # a sentence; JSON quotes its names, YAML has them in braces
    if match["dashes"] and name.lower() == "secret" and _GCLOUD.search(match.string, 0, match.start()):
        return False  # `gcloud secrets versions access latest --secret=NAME`
    return _is_secret(name, value)


def _is_option_of_one(match: re.Match[str]) -> bool:
    """Return whether an option of a command has a value that may be a secret. (A command that is only shown may lose one too many.)"""
    name, value = _plain(match["name"]), match["value"].rstrip(",)}")
    between = match["between"].strip()
    if not (match["dashes"] or between) or _ELSEWHERE.match(value):
        return False
    if between == ":" and (_SECRET.search(name) or name == "pass"):
        return not (_is_none(value) or value[0] in "/.")
    if _SHOWN.search(name) or (match["dashes"] and _SHOWN_OF_OPTION.search(name)):
        return not (_is_none(value) or _METHOD_OR_FILE.fullmatch(value))
    option = _PERHAPS_OF_OPTION.search(name)
    if option is None or not (match["dashes"] or between == "="):
        return False
    if _OF_TEXT.search(name) or _NO_TOKEN.fullmatch(value):
        return False
    login = option["login"] is not None and _LOGIN.fullmatch(value)
    return name.endswith("pass") or bool(login or _MADE_FOR_OPTION.fullmatch(value))


def _is_secret(given: str, value: str) -> bool:
    """Return whether a value is secret, by its name and its own look."""
    name = _plain(given)
    if not _may_be_secret(name) or _ELSEWHERE.match(value):
        return False
    if name == "pwd" and value[0] in "/.":
        return False  # the shell's directory
    if _SECRET.search(name):
        return True
    if _OF_TEXT.search(name) or _NO_TOKEN.fullmatch(value):
        return False
    return given.isupper() or _MADE.fullmatch(value) is not None


def _is_none(value: str) -> bool:
    """Return whether a value behind a secret's name is a place, or a word about it."""
    return value.strip(".,:!?()[]{}<>*").lower() in _NO_PASSWORD or _ELSEWHERE.match(value) is not None


def _plain(name: str) -> str:
    return re.sub(r"[.-]", "_", name.lower())


def _may_be_secret(name: str) -> bool:
    """Return whether a plain name can be that of a secret."""
    return bool(_SECRET.search(name) or _PERHAPS.search(name))
