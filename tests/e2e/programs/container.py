"""A container's first process, as a runtime makes it, below `unshare --mount`: `container.py SPEC WORDS...`.

SPEC is JSON: the user, the group and more groups, and what is mounted below /run, which is the container's own. Then it is WORDS, with no
capability but those that SPEC names and no way to one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def let_everybody_in(folder: str) -> None:
    """An image's Python is everybody's. Where this one lies in somebody's home, a new folder takes the home's place."""
    above = folder
    while above != "/":
        above = os.path.dirname(above)
        if not os.stat(above).st_mode & 0o001:
            os.makedirs("/run/image", exist_ok=True)
            mount("--bind", folder, "/run/image")
            mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", above)
            os.makedirs(folder)
            mount("--bind", "/run/image", folder)


def main(spec: str, words: list[str]) -> None:
    said = json.loads(spec)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    let_everybody_in(os.path.dirname(os.path.dirname(os.path.realpath(sys.executable))))
    for key, what in said["mounts"].items():
        where, read_only, _ = key.partition(":ro")
        os.makedirs(where, exist_ok=True)
        mount("--bind", what, where)
        if read_only:
            mount("-o", "remount,bind,ro", where)
    # Made by root, so that the test, which is root, believes who listens there.
    os.makedirs("/run/own/spotguard", 0o700)
    os.chmod("/run/own", 0o755)
    os.chown("/run/own/spotguard", said["user"], said["group"])
    os.environ["XDG_RUNTIME_DIR"] = "/run/own"
    groups = ",".join(map(str, said["groups"]))
    rights = ",".join(["-all", *(f"+{name.lower()}" for name in said["capabilities"])])
    become = [
        f"--reuid={said['user']}",
        f"--regid={said['group']}",
        f"--groups={groups}" if groups else "--clear-groups",
    ]
    os.execvp(
        "setpriv",
        ["setpriv", *become, "--no-new-privs", "--inh-caps=-all", f"--bounding-set={rights}", "--", *words],
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
