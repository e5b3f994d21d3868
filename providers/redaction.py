"""What looks like a secret, so that it is written nowhere where others read it: user-data, a store, a log.

A secret is known by its shape (what its maker begins it with), by its place (a password's in an URL, in curl's `-u`), or by the name
that it is given (`--api-key …`, `HF_TOKEN=…`). `$NAME` in a secret's place is none; where nobody expands it, `variables` refuses it.

A password may be any word, so its name is enough. A token is made by a machine: a word behind `--token` is a tokenizer's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

#: What begins a value that is written there: not one of the environment ($…, `…`), nor the next option.
_WRITTEN = r"""["']?[^\s$`"'&|;)-]"""

#: Between the words of a .netrc, which printf may write.
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
        # A user's name is none (https://me@dev.azure.com); a token in its place is long, and has digits.
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
        # Slack's, Discord's …: who has the last part may post.
        (r"""(?i)://[^\s"'$]*hooks?[./][^\s"'$]*/[\w-]{16,}""", "a webhook's URL"),
    )
)

#: A name and what it is given. The value is only looked at, so that the next name may begin in it.
_GIVEN = re.compile(
    r"""(?<![\w${-])(?P<dashes>-{0,2})(?P<name>[A-Za-z_][\w.-]*)(?P<quote>["']?)(?P<between>\s*=\s*|\s*:\s*|\s+)"""
    r"""(?=["']?(?P<value>[^\s"';]+))"""
)
#: What a name ends in. One that goes on after it (`--token-type`, `--api-key-file`) is another's. (PWD is the shell's folder.)
_SECRET = re.compile(
    r"(?:pass(?:word|wd|phrase)|(?:^|_)pw|_pwd|secret|(?:api|secret|access|private|storage|account|auth|signing)_?key)$"
)
#: What may be a tokenizer's word, or a count: a secret in the environment's capitals, or where the value looks made by a machine.
_PERHAPS = re.compile(r"(?:token|(?:^|_)pass)$")
_MADE = re.compile(
    r"(?:(?=.*[0-9])(?=.*[A-Za-z])[\w.~+/:-]{8,}|(?=.*[a-z])(?=.*[A-Z])[\w.~+/:-]{16,})=*(?:[&|>)].*)?"
)
#: EOS_TOKEN and MAX_TOKEN are a tokenizer's words, and a count.
_OF_TEXT = re.compile(
    r"(?:^|_)(?:max|min|num|n|per|new|eos|bos|pad|unk|sep|cls|mask|stop|start|end|next|special|image|audio|video)_?token$"
)
#: A count, a truth or a mark is no token. (It may be a password.)
_NO_TOKEN = re.compile(
    r"(?i)0?(?:\.[0-9]+)?|[1-9][0-9_.]{0,8}[kmg]?|true|false|yes|no|none|null|[<\[].*[>\]]"
)
#: Where a secret lies is none, nor is the code that looks for one.
_ELSEWHERE = re.compile(
    r"[$`-]|~/|\./|/(?:dev|etc|home|mnt|opt|proc|root|run|srv|tmp|usr|var)/|(?:os\.)?(?:environ|getenv)\b"
)

#: In the place of a secret; and the same as it is looked at, where a variable's name is none.
_LEFT_OUT, _VARIABLE = "…", "$X"
#: Words of a command that are looked at together: `docker login -u me -p …` has six.
_TOGETHER = 16
#: Of a word that gives a name its value, the name.
_NAMED = re.compile(r"\A-{0,2}[\w.-]+=")
#: Of a URL, whose it is: up to the last @, for a password may hold anything.
_USER = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*://).+@", re.DOTALL)


def secrets_in(text: str) -> Iterator[str]:
    """What each secret in it is called."""
    yield from (name for looks, name in _SHAPES if looks.search(text))
    if any(map(_is_given_one, _GIVEN.finditer(text))):
        yield "a secret by its name"


def looks_secret(text: str) -> bool:
    """Whether there is one in it."""
    return next(secrets_in(text), None) is not None


def redacted(command: Sequence[str]) -> list[str]:
    """The words of a command, with … for what looks like a secret: its value where it has a name, else the word."""
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
    """The word, and what is left of it with less and less."""
    yield word
    if found := _NAMED.match(word):
        yield f"{found[0]}{_LEFT_OUT}"
    yield _USER.sub(rf"\1{_LEFT_OUT}@", word)
    yield _LEFT_OUT


def _is_given_one(found: re.Match[str]) -> bool:
    name = re.sub(r"[.-]", "_", found["name"].lower())
    value = found["value"].rstrip(",)}")
    between = found["between"].strip() or " "
    if between == " " and not found["dashes"]:
        return False  # two words
    if between == ":" and not found["quote"]:
        return False  # a sentence; JSON has its names in quotes
    if _ELSEWHERE.match(value):
        return False
    if _SECRET.search(name):
        # `gcloud secrets versions access latest --secret=NAME`
        return not (found["dashes"] and name == "secret")
    if not _PERHAPS.search(name) or _OF_TEXT.search(name) or _NO_TOKEN.fullmatch(value):
        return False
    return found["name"].isupper() or _MADE.fullmatch(value) is not None
