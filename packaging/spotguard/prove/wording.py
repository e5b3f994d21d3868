"""Answers of the rows in the table of causes: the names for a row's text, or None if the facts do not support the row."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .evidence import Evidence
from .record import Trained
from .stale import Stale

#: A field of an object that a variable names.
_FIELD = re.compile(r"([A-Za-z_][\w.]*)\.(\w+)")

#: A row's answer: the values for `{names}`, `{first}` and other fields of its texts.
Found = dict[str, str] | None


def holds(fact: Callable[[Evidence], bool]) -> Callable[[Evidence], Found]:
    return lambda facts: {} if fact(facts) else None


def named(of: Callable[[Evidence], Sequence[str]]) -> Callable[[Evidence], Found]:
    def evidence(facts: Evidence) -> Found:
        found = of(facts)
        if not found:
            return None
        return {"names": _listed(found), "first": found[0], "arguments": _arguments(found)}

    return evidence


def strangers(facts: Evidence) -> Found:
    if not facts.strangers:
        return None
    text = "; ".join(
        f"{_optimizer(each)} trains {_trains(each)} and is not registered" for each in facts.strangers
    )
    modules = [name for name in facts.modules if name not in {each.name for each in facts.strangers}]
    return {"said": text, "arguments": _arguments([*(each.name for each in facts.strangers), *modules])}


def generators(facts: Evidence) -> Found:
    names = [
        _variable_of(each.name) if not each.owner or "Loader" in each.kind else each.owner
        for each in facts.stale
        if each.is_generator
    ]
    return {"names": _listed(names)} if names else None


def objects(facts: Evidence) -> Found:
    """Return objects that can be registered as they are: a scheduler, a sampler."""
    owners: dict[str, Stale] = {}
    for each in facts.stale:
        if "Loader" in each.kind and not each.kind.startswith("Resumable"):
            continue  # `register` refuses one by itself, and the row of the loader has the remedy
        if each.owner and not (each.is_mode or each.is_generator or each.is_left_out):
            owners.setdefault(each.owner, each)
    if not owners:
        return None
    text = "; ".join(_object(name, each) for name, each in [*owners.items()][:3])
    return {"said": text, "arguments": _arguments([*owners][:3])}


def left_out(facts: Evidence) -> Found:
    stale = [each for each in facts.stale if each.is_left_out and not (each.is_generator or each.is_mode)]
    if not stale:
        return None
    owners = list(dict.fromkeys(each.owner for each in stale))
    return {"said": "; ".join(map(_variable, stale[:3])), "owners": _listed(owners)}


def variables(facts: Evidence) -> Found:
    unowned = [
        each
        for each in facts.stale
        if not (each.owner or each.is_generator or each.is_mode or (each.is_iterator and off(facts)))
    ]
    # A length counts only if there is nothing else: it may be that of a buffer whose items come and go.
    stale = [each for each in unowned if not each.is_length] or [
        each for each in unowned if each.resumed == "0"
    ]
    if not (stale := stale[:3]):
        return None
    numbers = all(each.plain.lstrip("-").isdigit() and not each.is_length for each in stale)
    values = ", ".join(f"{key!r}: {key}" for key in _keys([each.name for each in stale]))
    place = "count a loader's batches by enumerate(loader, loader.position), " if facts.loaders else ""
    return {
        "said": "; ".join(map(_variable, stale)),
        "begin": f"begin it at what restore() returns, {place}or " if numbers else "",
        "keep": _in_its_class([_variable_of(each.name) for each in stale])
        or f"keep it in a dict that is registered, as in progress = {{{values}}}",
    }


def _in_its_class(names: Sequence[str]) -> str:
    """Return how a helper's fields become its state; "" if they are not fields of one object."""
    fields = [_FIELD.fullmatch(name) for name in names]
    owners = {field and field[1] for field in fields}
    if len(owners) != 1 or None in owners:
        return ""
    given = ", ".join(f"{field[2]}=self.{field[2]}" for field in fields if field)
    return (
        f"give its class `def state_dict(self): return dict({given})` and `def load_state_dict(self, state): "
        f"vars(self).update(state)`, and have it registered: register(…, {_arguments([*map(str, owners)])})"
    )


def modes(facts: Evidence) -> Sequence[str]:
    """Return modules in another mode, if nothing else stands as at the start: an average is evaluated now and then."""
    if facts.modules or facts.kept or not all(each.is_mode for each in facts.stale):
        return ()
    return [_variable_of(each.name).removesuffix(".training") for each in facts.stale if each.is_mode]


def wrap(of: Callable[[Evidence], Found]) -> Callable[[Evidence], Found]:
    """Add how the loader becomes one that is saved."""

    def evidence(facts: Evidence) -> Found:
        if (found := of(facts)) is None:
            return None
        wrapped = "wrap the loader, and register the wrapper: loader = spotguard.ResumableLoader(loader)"
        prepared = (
            "register what Accelerator.prepare returned: "
            "guard = spotguard.integrations.accelerate.register(accelerator, model, optimizer, loader)"
        )
        return {**found, "wrap": prepared if facts.accelerated else wrapped}

    return evidence


def behind_boundary(facts: Evidence) -> Found:
    if not facts.behind_boundary:
        return None
    named = [name for name in facts.behind_boundary if name]
    return {"names": " and ".join(f"{name}.step()" for name in named)}


def ahead(facts: Evidence) -> Found:
    if facts.data != "ahead":
        return None
    return {"count": "a batch is" if facts.shift == 1 else f"{facts.shift} batches are"}


def unseeded(facts: Evidence) -> Found:
    if not facts.unseeded:
        return None
    by = (
        "by the process's number"
        if facts.seeded_by_pid
        else "by the process's number, the time or the system's entropy"
    )
    return {"names": _listed(facts.unseeded), "by": by}


def own_generators(facts: Evidence) -> Found:
    return {"names": _listed([each.name for each in facts.stale])} if facts.stale else None


def differs_first_in(*kinds: str) -> Callable[[Evidence], bool]:
    return lambda facts: facts.first is not None and facts.first.kind in kinds


def unlike(*kinds: str) -> Callable[[Evidence], Found]:
    """Return evidence that undisturbed runs first differ in one of `kinds`, with the variables that differ from the start."""

    def evidence(facts: Evidence) -> Found:
        if not differs_first_in(*kinds)(facts):
            return None
        names = [_variable_of(name) for name in facts.unlike]
        return {"variables": f". From the start they differ in {_listed(names)}" if names else ""}

    return evidence


def _optimizer(each: Trained) -> str:
    return f"optimizer `{each.name}` ({each.kind})"


def _trains(each: Trained) -> str:
    shown = [f"`{name}`" for name in each.trains[:3]]
    more = each.count - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _object(name: str, each: Stale) -> str:
    kind = f" ({each.kind})" if each.kind else ""
    field = each.name.rpartition(".")[2]
    if not each.kind or _is_long(each):
        return f"`{name}`{kind} stands as at the start"
    return f"`{name}`{kind} has {field} {each.plain} in an uninterrupted run and {each.resumed} after the restore"


def _variable(each: Stale) -> str:
    function, _, name = each.name.rpartition(": ")
    called = f"`{name}`{f' in {function}' if function else ''}"
    if _is_long(each):
        return f"{called} stands as at the start"
    return f"{called} is {each.plain} in an uninterrupted run and {each.resumed} after the restore"


def _is_long(each: Stale) -> bool:
    return "[" in each.plain or len(each.plain) + len(each.resumed) > 60


def _variable_of(name: str) -> str:
    return name.rpartition(": ")[2]


def off(facts: Evidence) -> bool:
    """Report whether the batches are not those of the step."""
    return facts.data in ("anew", "behind") or (
        facts.data == "other" and any(each.is_loaders_iterator for each in facts.stale)
    )


def _listed(names: Sequence[str]) -> str:
    shown = [f"`{name}`" for name in names[:3]]
    return ", ".join(shown) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _keys(names: Sequence[str]) -> list[str]:
    """Return names for the variables in a call of `register`, or in a dict."""
    plain = [_argument(name).split("'s ")[-1].split(".")[-1] for name in names]
    return list(dict.fromkeys(name for name in plain if name.isidentifier()))


def _argument(name: str) -> str:
    """Return the variable that an item or a length belongs to."""
    inside = name[len("len(") : -1] if name.startswith("len(") else name
    return re.split(r"\[", _variable_of(inside), maxsplit=1)[0]


def _arguments(names: Sequence[str]) -> str:
    """Return the variables as arguments of `register`: `ema=self.ema`."""
    values = {key: _argument(name) for name in names for key in _keys([name])}
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "…"
