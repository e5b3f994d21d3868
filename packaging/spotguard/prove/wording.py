"""Answers of the rows in the table of causes: the names for a row's text, or None if the facts do not support the row."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from .compare import is_tensor
from .evidence import Evidence
from .record import Trained
from .stale import Stale

_WORD = re.compile(r"[A-Za-z_]\w*")
#: A value that a variable may begin at.
_LITERAL = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?|None|True|False")

#: A row's answer: the values for `{names}`, `{first}` and other fields of its texts.
Found = dict[str, str] | None


def holds(fact: Callable[[Evidence], bool]) -> Callable[[Evidence], Found]:
    return lambda facts: {} if fact(facts) else None


def named(of: Callable[[Evidence], Sequence[str]]) -> Callable[[Evidence], Found]:
    def evidence(facts: Evidence) -> Found:
        found = of(facts)
        if not found:
            return None
        return {"names": _listed(found), "first": found[0], "arguments": _given(_registered(found))}

    return evidence


def strangers(facts: Evidence) -> Found:
    if not facts.strangers:
        return None
    text = "; ".join(
        f"{_optimizer(each)} trains {_trains(each)} and is not registered" for each in facts.strangers
    )
    modules = [name for name in facts.modules if name not in {each.name for each in facts.strangers}]
    names = [*(each.name for each in facts.strangers), *modules]
    return {"said": text, "arguments": _given(_registered(names))}


def generators(facts: Evidence) -> Found:
    """Return generators that no checkpoint holds; a loader that is to be wrapped brings its own back."""
    of_loader = facts.fetched and not facts.loaders
    stale = [
        each
        for each in facts.stale
        if each.is_generator and not (each.is_environments or (of_loader and each.is_loaders))
    ]
    values = _registered([each.name for each in stale])
    if not values:
        return None
    return {"names": _listed([*values.values()]), "arguments": f"generators={_dict(values)}"}


def objects(facts: Evidence) -> Found:
    """Return objects that can be registered as they are: a scheduler, a sampler."""
    owners: dict[str, Stale] = {}
    for each in facts.stale:
        if each.is_loaders or each.is_environments:
            continue  # `register` refuses one by itself, and its own row has the remedy
        if each.owner and not (each.is_helpers or each.is_generator or each.is_left_out):
            owners.setdefault(each.owner, each)
    if not owners:
        return None
    text = "; ".join(_object(name, each) for name, each in [*owners.items()][:3])
    return {"said": text, "arguments": _given(_registered([*owners][:3]))}


def environments(facts: Evidence) -> Found:
    names = dict.fromkeys(each.owner for each in facts.stale if each.is_environments)
    return {"names": _listed([*names])} if names else None


def unwrapped(facts: Evidence) -> bool:
    """Report whether batches of a loader that is not registered begin anew, or a generator inside it does.

    A pass that begins anew may have the order of the next one: then its batches are ahead.
    """
    inside = any(each.is_generator and each.is_loaders for each in facts.stale)
    return facts.fetched and not facts.loaders and (inside or off(facts) or facts.data == "ahead")


def left_to_workers(facts: Evidence) -> bool:
    """Report whether batches differ first, and nothing in this process decides on them but a registered loader."""
    inside = any("Loader" in each.kind for each in facts.stale)
    return facts.workers_stay and bool(facts.loaders) and differs_first_in("input")(facts) and not inside


def left_out(facts: Evidence) -> Found:
    stale = [each for each in facts.stale if each.is_left_out and not each.is_generator]
    if not stale:
        return None
    owners = list(dict.fromkeys(each.owner for each in stale))
    names = [_key(_container(each.name)) for each in stale]
    tensors = dict.fromkeys(name for name, each in zip(names, stale, strict=True) if is_tensor(each.plain))
    buffers = [f"self.register_buffer({name!r}, …)" for name in tensors]
    fields = [*dict.fromkeys(name for name in names if name not in tensors)]
    module = [f"{', '.join(buffers)} without persistent=False"] if buffers else []
    module += [_state(fields, "get_extra_state", "set_extra_state")] if fields else []
    return {"said": _said(stale), "owners": _listed(owners), "module": ", and ".join(module)}


def variables(facts: Evidence) -> Found:
    unowned = [
        each
        for each in facts.stale
        if (not each.owner or each.is_helpers)
        and not (each.is_generator or (each.is_iterator and off(facts)))
    ]
    # A length may be that of a buffer whose items come and go.
    stale = [each for each in unowned if not each.is_length or each.resumed == "0"]
    if not stale:
        return None
    return {"said": _said(stale), "begin": _begin(stale, facts), **kept(stale, facts.notes)}


def averages(facts: Evidence) -> Found:
    if not facts.kept:
        return None
    names = dict.fromkeys(_container(each.name) for each in facts.kept)
    return {"names": _listed([*names]), **kept(facts.kept, facts.notes)}


def kept(stale: Sequence[Stale], notes: str) -> dict[str, str]:
    """Return how variables and the fields of helpers become state that is registered.

    Args:
        notes: a dict that is registered already; "" for none.
    """
    classes: dict[str, None] = {}
    arguments: dict[str, str] = {}
    for owner in dict.fromkeys(each.owner for each in stale if each.is_helpers):
        fields = [each for each in stale if each.owner == owner]
        expression = _variable_of(owner)
        arguments[_key(owner)] = expression if fields[0].is_whole else f"vars({expression})"
        if fields[0].is_whole:
            names = (_inside(each.name).removeprefix(f"{expression}.") for each in fields)
            classes[_state([*dict.fromkeys(map(_container, names))], "state_dict", "load_state_dict")] = None
    text = f"give its class {'; '.join(classes)}; " if classes else ""
    plain = [each for each in stale if not each.is_helpers]
    iterators = dict.fromkeys(
        _container(each.name).partition(" of")[0]
        for each in plain
        if each.is_iterator or each.name.endswith(" of")
    )
    if iterators and not arguments:
        advance = ", ".join(f"next({name})" for name in iterators)
        return {
            "keep": f"advance it once for each completed step: for _ in range(guard.restore()): {advance}"
        }
    known = "" if arguments else notes
    values, instead = _progress([] if iterators else plain, known or "progress")
    if values and known:
        begun = f"{known}.update({_dict(values)})"
        return {
            "keep": f"keep it in `{known}`, which is registered, from before register() on: {begun}{instead}"
        }
    if values:
        text += f"keep it in a dict: progress = {_dict(values)}; "
        arguments["progress"] = "progress"
    return {"keep": f"{text}register it: register(…, {_given(arguments)}){instead}"}


def _progress(stale: Sequence[Stale], notes: str) -> tuple[dict[str, str], str]:
    """Return a dict of the variables, and which of them are no longer used: those that a script sets anew."""
    values: dict[str, str] = {}
    instead: dict[str, None] = {}
    for each in stale:
        name = _container(each.name)
        key = _key(name)
        begins = _LITERAL.fullmatch(each.resumed) and not each.is_length
        values[key] = each.resumed if begins else name
        if not (each.is_length or "[" in each.name or each.plain.startswith(("[", "{"))):
            instead[f"{notes}[{key!r}] instead of `{name}`"] = None
    return values, f"; and use {' and '.join([*instead][:3])}" if instead else ""


def _begin(stale: Sequence[Stale], facts: Evidence) -> str:
    """Return what counters may begin at; "" if that leaves out what no number can follow from."""
    places = {"what restore() returns": str(facts.begin), **facts.places}
    found = {}
    for each in stale:
        at = [place for place, value in places.items() if value == each.plain]
        if at and each.resumed == "0" and not each.is_length:
            found[_inside(each.name)] = " or ".join(at)
        elif each.owner or not _LITERAL.fullmatch(each.plain):
            return ""
    return "".join(f"begin `{name}` at {at}; " for name, at in found.items()) + "or " * bool(found)


def _state(fields: Sequence[str], get: str, set: str) -> str:
    given = ", ".join(f"{field}=self.{field}" for field in fields)
    return f"`def {get}(self): return dict({given})` and `def {set}(self, state): vars(self).update(state)`"


def modes(facts: Evidence) -> Sequence[str]:
    """Return modules in another mode, as expressions."""
    parts = [name.partition(".") for name in facts.modes]
    return [f"{root}.get_submodule({part!r})" if part else root for root, _, part in parts]


def wrap(of: Callable[[Evidence], Found]) -> Callable[[Evidence], Found]:
    """Add how the loader becomes one that is saved."""

    def evidence(facts: Evidence) -> Found:
        if (found := of(facts)) is None:
            return None
        name = facts.plain_loaders[0] if len(facts.plain_loaders) == 1 else "loader"
        wrapped = f"wrap the loader, and register the wrapper: {name} = spotguard.ResumableLoader({name})"
        wrapped += ", and make its iterator after restore()" if facts.early_iterators else ""
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
    if facts.data != "ahead" or unwrapped(facts):
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
        if not names:
            return {"variables": "", "instead": ""}
        instead = f"if training depends on {_listed(names)}, compute it from the number of the step; if not, "
        return {"variables": f". From the start they differ in {_listed(names)}", "instead": instead}

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


def _said(stale: Sequence[Stale]) -> str:
    return "; ".join(map(_variable, stale[:3]))


def _inside(name: str) -> str:
    """Return a variable's expression without the function that has it, and without `len()`."""
    return _variable_of(name[len("len(") : -1] if name.startswith("len(") else name)


def _container(name: str) -> str:
    """Return the variable that an item or a length belongs to."""
    return _inside(name).partition("[")[0].rpartition("'s ")[2]


def _key(expression: str) -> str:
    """Return a name for a value in a call of `register`, or in a dict: the last one in its expression."""
    words: list[str] = _WORD.findall(expression)
    return words[-1]


def _registered(names: Sequence[str]) -> dict[str, str]:
    """Return the variables as arguments of `register`; a name with a space is none of the script's."""
    return {_key(name): _variable_of(name) for name in names if " " not in _variable_of(name)}


def _dict(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{key!r}: {value}" for key, value in values.items()) + "}"


def _given(values: Mapping[str, str]) -> str:
    """Return values as arguments of `register`: `ema=self.ema`."""
    return ", ".join(f"{key}={value}" for key, value in values.items()) or "…"
