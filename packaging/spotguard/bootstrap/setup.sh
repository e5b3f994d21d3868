
# --- what follows is the same on every machine ---
# Made to run at every boot, and by hand as root: what stands already stays as it is.

umask 022
home=/opt/spotguard
etc=/etc/spotguard
state=/var/lib/spotguard
units=/etc/systemd/system
job="spotguard-run@$run_id.service"
runs=$etc/runs/$run_id
mark="# Written by spotguard bootstrap."

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

digest_of() { printf '%s\n' "$@" | sha256sum | cut -c1-16; }

# With what RUN_ID.env holds, which systemd reads here as it does for the job: an index's password, a token for a clone.
with_secrets() {
    systemd-run --quiet --wait --pipe --collect --property="EnvironmentFile=-$runs.env" --setenv="PATH=$path" "$@" </dev/null
}

# --- Python, and an environment of our own ---

usable() { "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; }

find_python() {
    if [ -n "$python" ]; then set -- "$python"; else set -- python3 python3.14 python3.13 python3.12 python3.11; fi
    for name; do
        if usable "$name"; then command -v "$name"; return; fi
    done
    return 1
}

# `update` calls a mirror that does not answer a success, so both are tried again. Another apt may hold the lock at a first boot.
apt_install() {
    apt-get -q -o DPkg::Lock::Timeout=300 update && apt-get -qy -o DPkg::Lock::Timeout=300 install "$@"
}

install_python() {
    if command -v apt-get >/dev/null; then  # Debian, Ubuntu
        export DEBIAN_FRONTEND=noninteractive
        patiently apt_install python3 python3-venv
        usable python3 || patiently apt_install python3.11 python3.11-venv  # Ubuntu 22.04, whose python3 is 3.10
    elif command -v dnf >/dev/null; then  # Amazon Linux 2023, whose python3 is 3.9
        patiently dnf -qy install python3.11 python3.11-pip
    else
        die "neither apt-get nor dnf is here: install Python 3.11 to 3.14 with venv in the image"
    fi
}

# It sees what the image's Python has, torch above all, and nothing is installed beside that. One that is complete is put in the
# place of the one before: a notice in the meantime finds the old one.
install_spotguard() {
    found=$(find_python) || {
        [ -z "$python" ] || die "--python $python: not there, or not Python 3.11 to 3.14 with venv and pip"
        install_python
        found=$(find_python) || die "no Python 3.11 to 3.14 with venv and pip, and none could be installed"
    }
    place=$home-$(digest_of "$packages" "$index" "$found")
    path=$home/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$(dirname "$found")
    [ "$(readlink "$home")" != "$place" ] || return 0
    say "installing spotguard with $found: $packages"
    rm -rf "$place"
    "$found" -m venv "$place"
    # What lies beside a python3 is made for it; a Python that was only just installed has nothing of its own.
    if [ -n "$python" ] || [ "$found" = "$(command -v python3)" ]; then
        below=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        "$found" -c 'import site
for path in site.getsitepackages(): print(f"import site; site.addsitedir({path!r})")' >"$below/of-the-image.pth"
    fi
    printf '%s\n' "${index:+--index-url $index}" "$packages" >"$place/requirements.txt"
    patiently with_secrets "$place/bin/python" -m pip install --quiet --no-input --disable-pip-version-check -r "$place/requirements.txt"
    "$place/bin/python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))' ||
        say "no torch is here: take an image with torch, name its Python by --python, or print the user-data --with torch"
    # The image's torchrun, accelerate and the like start the image's Python, which has no spotguard: here they start this one.
    "$place/bin/python" - "$place/bin" <<'PYTHON'
import os
import sys
from importlib.metadata import entry_points

for script in entry_points(group="console_scripts"):
    path = os.path.join(sys.argv[1], script.name)
    if not os.path.lexists(path):
        module, _, name = script.value.partition("[")[0].strip().partition(":")
        with open(path, "w") as file:
            file.write(
                f"#!{sys.argv[1]}/python\nimport sys\nfrom {module} import {name.partition('.')[0]}\n"
                f"if __name__ == '__main__':\n    sys.exit({name}())\n"
            )
        os.chmod(path, 0o755)
PYTHON
    sync
    ln -sfn "$place" "$home"
    # Where sudo looks. A program that somebody else has put there stays.
    link=/usr/local/bin/spotguard
    if [ -L "$link" ] || [ ! -e "$link" ]; then ln -sfn "$home/bin/spotguard" "$link"; fi
}

# --- users and files ---

make_users() {
    getent group spotguard >/dev/null || groupadd --system spotguard
    id spotguard >/dev/null 2>&1 || useradd --system --gid spotguard --no-create-home --home-dir / --shell /usr/sbin/nologin spotguard
    id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"
    usermod --append --groups spotguard "$user"
    directory=${directory:-$(getent passwd "$user" | cut -d: -f6)}
    [ -d "$directory" ] || install -d -o "$user" -g "$(id -gn "$user")" "$directory"
}

# In a unit a % begins a specifier. In quotes a " ends them.
unit_value() { printf '%s' "$1" | sed 's/%/%%/g'; }
quoted() { unit_value "$1" | sed 's/[\\"]/\\&/g'; }

write_files() {
    install -d -m 755 "$units/$job.d" "$units/spotguard-agent.service.d"
    printf '%s\n' "$agent_toml" >"$etc/agent.toml"
    printf '%s\n' "$run_toml" >"$runs.toml"
    # The words themselves stand behind `spotguard run`: it knows torchrun when it sees it.
    printf '#!/bin/sh\n%s\nexec %s/bin/spotguard run --config %s -- %s\n' \
        "$mark" "$home" "$runs.toml" "$command" >"$runs.sh"
    chmod 755 "$runs.sh"
    {
        printf '[Service]\nUser=%s\nWorkingDirectory=%s\n' "$user" "$(unit_value "$directory")"
        printf 'Restart=%s\nTimeoutStopSec=%s\nEnvironment="PATH=%s"\n' "$restart" "$patience" "$(quoted "$path")"
        # One that is started again by hand is not over.
        [ -z "$at_end" ] || printf 'ExecStartPre=-+systemctl --quiet stop spotguard-then.timer\nExecStopPost=+%s.over\n' "$runs"
    } >"$units/$job.d/job.conf"
    printf '[Service]\n%s\n' "${allow:+IPAddressAllow=$allow}" >"$units/spotguard-agent.service.d/metadata.conf"
    shipped=$("$home/bin/python" -c 'import spotguard.bootstrap as b; print(*b.__path__)')
    install -m 644 "$shipped/systemd-units/spotguard-agent.service" "$shipped/systemd-units/spotguard-run@.service" "$units/"
}

# Once, whatever else is set up anew. A power cut in the middle, or an error, has it run again.
prepare_job() {
    done=$state/prepared-$(digest_of "$prepare" "$directory")
    [ -n "$prepare" ] && [ ! -e "$done" ] || return 0
    printf '%s\n' "$prepare" >"$runs.prepare"
    patiently with_secrets --uid="$user" --working-directory="$directory" sh -e "$runs.prepare"
    sync
    : >"$done"
}

# What is to be done when all is over, here or in the job: in a minute, so that who wants to look can stop the timer. An end by 75
# is none, and who stops the job, or the machine, ends it so.
write_the_end() {
    install -d -m 755 "$etc" "$etc/runs"
    rm -f "$runs.over" "$runs.then"
    [ -n "$at_end" ] || return 0
    printf '#!/bin/sh\n%s\n' "$at_end" >"$runs.then"
    cat >"$runs.over" <<END
#!/bin/sh
# \$SERVICE_RESULT and \$EXIT_STATUS are in systemd.exec(5).
restart=$restart
case "\$restart:\$SERVICE_RESULT:\$EXIT_STATUS" in
    *:setup:*) ;;
    # SIGTERM as its end, or no process yet: stopped before \`run\` could take it.
    *:75 | *:timeout:* | *:success:TERM | *:success:) exit 0 ;;
    on-failure:success:* | on-failure:exit-code:2 | on-failure:exit-code:78) ;;  # the unit's RestartPreventExitStatus=
    on-failure:*) exit 0 ;;
esac
echo "spotguard: run $run_id is over (\$EXIT_STATUS): $runs.then in a minute, unless: systemctl stop spotguard-then.timer"
systemctl --quiet stop spotguard-then.timer 2>/dev/null
exec systemd-run --quiet --collect --on-active=60 --unit=spotguard-then --setenv="SPOTGUARD_ENDED=\$EXIT_STATUS" \\
    --property="EnvironmentFile=-$runs.env" sh "$runs.then"
END
    chmod 755 "$runs.over"
    trap setup_ends EXIT
}

setup_ends() {
    [ $? = 0 ] || systemctl --quiet is-active "$job" || SERVICE_RESULT=setup EXIT_STATUS=setup "$runs.over"
}

# Only root reads it: systemd does so for the job.
close_secrets() {
    if [ -e "$runs.env" ]; then chown 0:0 "$runs.env" && chmod 600 "$runs.env"; fi
}

# An image that was made of such a machine, or another run id for the same one: the run of before would train on beside this.
end_other_runs() {
    for file in "$etc"/runs/*.sh; do
        other=$(basename "$file" .sh)
        if [ "$other" != "$run_id" ] && grep -qxF "$mark" "$file"; then
            say "run $other was set up here before: ending it"
            systemctl disable --quiet --now "spotguard-run@$other.service"
            rm -f "$file"
        fi
    done
}

# --- what is done ---

[ "$(id -u)" = 0 ] || die "to be run as root"
install -d -m 755 "$state"
write_the_end
close_secrets
if [ "$(cat "$state/set-up" 2>/dev/null)" = "$(sha256sum <"$0")" ] && [ -x "$home/bin/spotguard" ]; then
    say "run $run_id is set up already"
else
    install_spotguard
    make_users
    write_files
    prepare_job
    systemctl daemon-reload
    end_other_runs
    systemctl enable --quiet spotguard-agent.service "$job"
    systemctl try-restart spotguard-agent.service "$job"
    for old in "$home"-*; do
        [ "$old" = "$(readlink "$home")" ] || rm -rf "$old"
    done
    sync  # a machine that is taken loses what was not written yet
    sha256sum <"$0" >"$state/set-up"
    say "run $run_id is set up"
fi
# Not waited for: the boot that runs this is not over, and the units are ordered behind it.
systemctl start --no-block spotguard-agent.service "$job"
