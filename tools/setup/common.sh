# shellcheck shell=bash
# What the set-up scripts share; sourced.

say() { printf 'set-up: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

cache=${ZLINK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/zlink-nogil}

# The directory of our own build: cached_prefix O3|pgo
cached_prefix() { echo "$cache/cpython-3.13t-$(uname -m)-$1"; }

can_be_root() { ((EUID == 0)) || sudo -n true 2>/dev/null; }

as_root() {
    if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

# apt_install PACKAGE...: asks nothing, waits while another apt is at work.
apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 "$@" >&2
}
