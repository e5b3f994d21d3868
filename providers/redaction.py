"""Detection of secrets in text, so that spotguard writes none where others can read it: user-data, a store, a log.

Three things give a secret away: its shape (the prefix that its issuer uses), its place (the password in a URL, curl's
`-u`), or its name (`--api-key …`, `HF_TOKEN=…`). `$NAME` in the place of a secret is not one. If nothing expands the
variable, `bootstrap.variables` refuses it.

A password may be any word, so its name is enough. A token is made by a machine: a word after `--token` is a tokenizer's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

#: The start of a value written out in full: neither a variable or command substitution ($…, `…`) nor the next option.
_WRITTEN = r"""["']?[^\s$`"'&|;)-]"""

#: The space between the words of a .netrc, which a printf may write.
_BLANK = r"(?:\s|\\n)+"

_SHAPES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", "an AWS access key"),
        (rf"(?i)\baws_secret_access_key[\s=:]+{_WRITTEN}", "an AWS secret key"),
        (r"(?i)\bAccountKey=", "the key of an Azure storage account"),
        (r"(?i)\bsig=[0-9a-z%+/]{20,}", "an Azure SAS"),
        (r"(?i)\bX-(?:Amz|Goog)-Signature=", "a signed URL"),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----", "a private key"),
        (r"""://[^\s/@:"']*:[^\s/@$"'][^\s/@"']*@""", "a password in a URL"),
        # A user name alone is not a secret (https://me@dev.azure.com); a token in its place is long, and has digits.
        (r"""://(?=[^\s/@:]*[0-9])[A-Za-z0-9_-]{20,}@""", "a password in a URL"),
        (r"\b(?:gh[pousr]_|github_pat_|glpat-)[0-9A-Za-z_-]{16,}", "a token"),
        (r"\b(?:hf_|npm_|sk-(?:proj-|ant-)?)(?=[A-Za-z]*[0-9])[0-9A-Za-z]{16,}", "a token"),
        (r"\bhf_[A-Za-z]{30,}", "a token"),
        (r"\b(?:xox[abpr]-|pypi-|dckr_pat_|AIza)[0-9A-Za-z_-]{20,}", "a token"),
        (r"\beyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}", "a token"),
        (
            rf"(?i)\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token|apikey)\s+{_WRITTEN}",
            "a header with credentials",
        ),
        (
            rf"(?i)\b(?:x-[a-z-]*(?:key|token)|(?:private|job)-token)\s*:\s*{_WRITTEN}",
            "a header with credentials",
        ),
        (
            r"""(?i)\bcurl\b[^\n|;&]*\s(?:-u\s*|--(?:proxy-)?user[\s=]+)["']?[^\s:"'$]+:[^\s$"']""",
            "a password",
        ),
        (rf"\bwandb\s+login\s+(?:--?[\w-]+(?:=\S+)?\s+)*{_WRITTEN}", "a key of wandb's"),
        # docker's, az's, helm's …
        (rf"\slogin(?=\s)[^\n|;&]*\s-p\s*{_WRITTEN}|\bsshpass\s+-p\s*{_WRITTEN}", "a password"),
        (rf"\bmachine{_BLANK}\S+{_BLANK}login{_BLANK}\S+{_BLANK}password{_BLANK}{_WRITTEN}", "a password"),
        # Slack's, Discord's and others': whoever has the last part may post.
        (r"(?i)://hooks\.slack(?:-gov)?\.com/\w+/[\w-]+/[\w-]+", "a webhook's URL"),
        (r"""(?i)://[^\s"'$]*hooks?[./][^\s"'$]*/[\w-]{16,}""", "a webhook's URL"),
    )
)

#: A name and its value. The value is in a lookahead, so that the next name may begin inside it.
_GIVEN = re.compile(
    r"""(?<![\w${-])(?P<dashes>-{0,2})(?P<name>[A-Za-z_][\w.-]*)(?P<quote>["']?)(?P<between>\s*=\s*|\s*:\s*|\s+)"""
    r"""(?=["']?(?P<value>[^\s"';]+))"""
)
#: Endings of a secret's name. A name that continues (`--token-type`, `--api-key-file`) is another value's; PWD is the
#: shell's directory.
_SECRET = re.compile(
    r"(?:pass(?:word|wd|phrase)|(?:^|_)pw|_pwd|secret|(?:api|secret|access|private|storage|account|auth|signing)_?key)$"
)
#: Endings that may also name a tokenizer's word or a count. They count as a secret's if the name is in capitals, as in the
#: environment, or if the value looks made by a machine.
_PERHAPS = re.compile(r"(?:token|(?:^|_)pass)$")
_MADE = re.compile(
    r"(?:(?=.*[0-9])(?=.*[A-Za-z])[\w.~+/:-]{8,}|(?=.*[a-z])(?=.*[A-Z])[\w.~+/:-]{16,})=*(?:[&|>)].*)?"
)
#: Names that are not secrets: EOS_TOKEN is a tokenizer's word, MAX_TOKEN a count.
_OF_TEXT = re.compile(
    r"(?:^|_)(?:max|min|num|n|per|new|eos|bos|pad|unk|sep|cls|mask|stop|start|end|next|special|image|audio|video)_?token$"
)
#: Values that are not tokens: a count, a truth value, a mark. (A password may be one of them.)
_NO_TOKEN = re.compile(
    r"(?i)0?(?:\.[0-9]+)?|[1-9][0-9_.]{0,8}[kmg]?|true|false|yes|no|none|null|[<\[].*[>\]]"
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
_NAMED = re.compile(r"\A-{0,2}[\w.-]+=")
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
            if not looks_secret(" ".join([*before[-_TOGETHER:], text])):
                break
        kept.append(candidate)
        before.append(text)
    return kept


def _without(word: str) -> Iterator[str]:
    """Yield the word, then versions of it with ever more left out."""
    yield word
    if named := _NAMED.match(word):
        yield f"{named[0]}{_LEFT_OUT}"
    yield _USER.sub(rf"\1{_LEFT_OUT}@", word)
    yield _LEFT_OUT


def _is_given_one(match: re.Match[str]) -> bool:
    name = re.sub(r"[.-]", "_", match["name"].lower())
    value = match["value"].rstrip(",)}")
    between = match["between"].strip() or " "
    if between == " " and not match["dashes"]:
        return False  # two separate words
    if between == ":" and not match["quote"]:
        return False  # a sentence; JSON quotes its names
    if _ELSEWHERE.match(value):
        return False
    if _SECRET.search(name):
        # `gcloud secrets versions access latest --secret=NAME`
        return not (match["dashes"] and name == "secret")
    if not _PERHAPS.search(name) or _OF_TEXT.search(name) or _NO_TOKEN.fullmatch(value):
        return False
    return match["name"].isupper() or _MADE.fullmatch(value) is not None
