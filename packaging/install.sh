#!/bin/sh
# Installs Quintet from the files beside this script, and from nowhere else.
#
#   ./install.sh                    into ~/.local, as root into /usr/local
#   ./install.sh --prefix DIR       into DIR
#   ./install.sh --uninstall        removes exactly what was installed (--prefix as above)
#
# Running it again upgrades. The home folder (~/.quintet) is never touched.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
prefix= uninstall=
umask 022

usage() {
    sed -n '4,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -ge 2 ] && [ -n "$2" ] || usage; prefix=$2; shift ;;
        --prefix=?*) prefix=${1#--prefix=} ;;
        --uninstall) uninstall=1 ;;
        *) usage ;;
    esac
    shift
done

# The copy in PREFIX/share/quintet knows where it is.
if [ -z "$prefix" ]; then
    if [ -f "$here/manifest" ]; then
        prefix=$(cd "$here/../.." && pwd)
    elif [ "$(id -u)" -eq 0 ]; then
        prefix=/usr/local
    else
        prefix=${HOME:?}/.local
    fi
fi
case $prefix in
    /*) ;;
    *) prefix=$PWD/$prefix ;;
esac

# A line a file, relative to the prefix; folders that were made for them end with a slash.
manifest=$prefix/share/quintet/manifest

# Removes what OLD lists and NEW does not. Folders last, deepest first, and only when they are empty.
remove_beyond() {
    grep -v '/$' "$1" | while IFS= read -r file; do
        grep -Fxq -e "$file" "$2" || rm -f "$prefix/$file"
    done
    grep '/$' "$1" | sort -r | while IFS= read -r folder; do
        grep -Fxq -e "$folder" "$2" || rmdir "$prefix/$folder" 2>/dev/null || :
    done
}

if [ -n "$uninstall" ]; then
    [ -f "$manifest" ] || fail "nothing is installed in $prefix"
    old=$(mktemp)
    cp "$manifest" "$old"
    remove_beyond "$old" /dev/null
    rm -f "$old"
    rmdir "$prefix" 2>/dev/null || :
    printf 'removed from %s; ~/.quintet is as it was\n' "$prefix"
    exit 0
fi

[ -x "$here/bin/quintet" ] || fail "$here holds no bin/quintet: run the install.sh of an unpacked archive"

new=$(mktemp) whole=
# Cut short, what is there by then is listed all the same: `--uninstall` and the next run find it.
leave() {
    if [ -z "$whole" ] && [ -s "$new" ] && mkdir -p "$(dirname "$manifest")"; then
        printf '%s\n' share/quintet/ share/quintet/manifest >>"$new"
        sort -u "$new.old" "$new" >"$manifest.new" && mv -f "$manifest.new" "$manifest"
    fi
    rm -f "$new" "$new.old" "$new.unit"
}
trap leave EXIT
trap 'exit 1' HUP INT TERM
: >"$new.old"
[ ! -f "$manifest" ] || cp "$manifest" "$new.old"

# In the unit: quoted as systemd reads it, then as sed does.
bindir=$(printf '%s' "$prefix/bin" | sed 's/[\\"]/\\&/g; s/%/%%/g; s/[\\&|]/\\&/g')

# Notes the folders of $1 that are not there, or that an earlier run made.
make_folder() {
    [ "$1" = . ] && { mkdir -p "$prefix"; return; }
    make_folder "$(dirname "$1")"
    if [ ! -d "$prefix/$1" ]; then
        mkdir "$prefix/$1"
    elif ! grep -Fxq -e "$1/" "$new.old"; then
        return
    fi
    grep -Fxq -e "$1/" "$new" || printf '%s/\n' "$1" >>"$new"
}

# put SOURCE DESTINATION MODE: whole or not at all, also over a program that runs.
put() {
    make_folder "$(dirname "$2")"
    [ ! -d "$prefix/$2" ] || fail "$prefix/$2 is a folder, where a file belongs: move it away"
    cp "$1" "$prefix/$2.new"
    chmod "$3" "$prefix/$2.new"
    mv -f "$prefix/$2.new" "$prefix/$2"
    printf '%s\n' "$2" >>"$new"
}

(cd "$here" && find bin share -type f | sort) | while IFS= read -r file; do
    case $file in
        */quintet.service)
            sed "s|@bindir@|$bindir|" "$here/$file" >"$new.unit"
            put "$new.unit" "$file" 644
            ;;
        bin/*) put "$here/$file" "$file" 755 ;;
        *) put "$here/$file" "$file" 644 ;;
    esac
done
put "$here/install.sh" share/quintet/install.sh 755
printf '%s\n' share/quintet/manifest >>"$new"
cp "$new" "$manifest"
whole=1
remove_beyond "$new.old" "$new"

printf 'quintet is installed in %s\n' "$prefix"
case :${PATH:-}: in
    *:"$prefix/bin":*) ;;
    *) printf '  add it to your PATH: export PATH="%s/bin:$PATH"\n' "$prefix" ;;
esac
printf '  run it:      quintet up\n'
case $prefix in
    "${HOME-}/.local" | /usr/local) ;;
    # Elsewhere systemd does not look by itself.
    *) printf '  for systemd: systemctl --user link "%s/share/systemd/user/quintet.service"\n' "$prefix" ;;
esac
printf '  or for good: systemctl --user enable --now quintet\n'
printf '  remove it:   %s/share/quintet/install.sh --uninstall\n' "$prefix"
