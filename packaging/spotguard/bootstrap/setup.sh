
# --- what follows is the same on every machine ---
# Made to run at every boot, and by hand: what stands already stays as it is.

home=/opt/spotguard
etc=/etc/spotguard
units=/etc/systemd/system
job="spotguard-run@$run_id.service"

say() { echo "spotguard setup: $*"; }
die() { say "$*" >&2; exit 1; }

# A mirror that is busy, a link that comes up late: the first boot is a bad day for a network.
patiently() {
    for pause in 2 5 10 20 0; do
        "$@" && return
        [ "$pause" = 0 ] || { say "failed, trying again in $pause s: $*"; sleep "$pause"; }
    done
    die "given up: $*"
}

usable() { "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; }

find_python() {
    for name in ${python:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if usable "$name"; then command -v "$name"; return; fi
    done
    return 1
}

install_python() {
    if command -v apt-get >/dev/null; then  # Debian, Ubuntu
        export DEBIAN_FRONTEND=noninteractive
        patiently apt-get -q update
        apt-get -qy install python3 python3-venv
        usable python3 || apt-get -qy install python3.11 python3.11-venv
    elif command -v dnf >/dev/null; then  # Amazon Linux 2023, whose python3 is 3.9
        patiently dnf -qy install python3.11 python3.11-pip
    else
        die "neither apt-get nor dnf is here: install Python 3.11 to 3.14 with venv in the image"
    fi
}

# A virtual environment of our own, which sees what the job's Python has: its torch, and nothing is installed beside it.
install_spotguard() {
    found=$(find_python) || {
        [ -z "$python" ] || die "--python $python: not there, or not Python 3.11 to 3.14 with venv and pip"
        install_python
        found=$(find_python) || die "no Python 3.11 to 3.14 with venv and pip, and none could be installed"
    }
    say "installing $package with $found"
    rm -rf "$home"
    "$found" -m venv "$home"
    below=$("$home/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$found" -c 'import site; print(*site.getsitepackages(), sep="\n")' >"$below/of-the-image.pth"
    patiently "$home/bin/python" -m pip install --quiet --no-input --disable-pip-version-check ${index:+--index-url "$index"} "$package"
    # The image's torchrun starts the image's Python, which has no spotguard.
    if "$home/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
        printf '#!/bin/sh\nexec %s/bin/python -m torch.distributed.run "$@"\n' "$home" >"$home/bin/torchrun"
        chmod 755 "$home/bin/torchrun"
    fi
}

make_users() {
    getent group spotguard >/dev/null || groupadd --system spotguard
    id spotguard >/dev/null 2>&1 || useradd --system --gid spotguard --no-create-home --home-dir / --shell /usr/sbin/nologin spotguard
    id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"
    usermod --append --groups spotguard "$user"
    directory=${directory:-$(getent passwd "$user" | cut -d: -f6)}
    [ -d "$directory" ] || install -d -o "$user" -g "$(id -gn "$user")" "$directory"
}

write_files() {
    install -d -m 755 "$etc" "$units/$job.d"
    printf '%s\n' "$agent_toml" >"$etc/agent.toml"
    printf '%s\n' "$run_toml" >"$etc/$run_id.toml"
    printf '#!/bin/sh\nexec %s\n' "$command" >"$etc/$run_id.command"
    chmod 755 "$etc/$run_id.command"
    printf '[Service]\nUser=%s\nWorkingDirectory=%s\nRestart=%s\n' "$user" "$directory" "$restart" >"$units/$job.d/job.conf"
    shipped=$("$home/bin/python" -c 'import spotguard.bootstrap as b; print(*b.__path__)')
    install -m 644 "$shipped/systemd/spotguard-agent.service" "$shipped/systemd/spotguard-run@.service" "$units/"
}

prepare_job() {
    [ -z "$prepare" ] || (cd "$directory" && patiently runuser -u "$user" -- sh -c "$prepare")
}

[ "$(id -u)" = 0 ] || die "to be run as root"
# Of everything above and below: another version, another command, another option is set up anew.
digest=$(sha256sum "$0" | cut -d' ' -f1)
if [ "$(cat "$home/.set-up" 2>/dev/null)" = "$digest" ]; then
    say "run $run_id is set up already"
else
    install_spotguard
    make_users
    write_files
    prepare_job
    systemctl daemon-reload
    systemctl enable --quiet spotguard-agent.service "$job"
    systemctl try-restart spotguard-agent.service "$job"
    echo "$digest" >"$home/.set-up"
    say "run $run_id is set up"
fi
# Not waited for: the boot that runs this is not over, and the units are ordered behind it.
systemctl start --no-block spotguard-agent.service "$job"
