#!/usr/bin/env bash
# Builds free-threaded CPython 3.13 from Debian's source package into the user's cache and prints the interpreter's
# path on standard output; progress goes to standard error.
#
#   build_cpython.sh [--pgo]     about 5 minutes on two cores; with --pgo about 15
#
# Guarantees: one build at a time per cache (flock; what an interrupted build left running holds the lock too); the
# result appears by one rename, so an interrupted or failed build leaves nothing that a later run could mistake for an
# interpreter. The mirror and the keyring are the machine's own.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

flags=O3
[[ ${1:-} == --pgo ]] && flags=pgo

prefix=$(cached_prefix "$flags")
python=$prefix/bin/python3.13t
work=$cache/build-$flags
log=$work/build.log

build_dependencies=(build-essential pkg-config xz-utils libssl-dev zlib1g-dev libffi-dev libsqlite3-dev libbz2-dev
                    liblzma-dev libreadline-dev uuid-dev libncurses-dev)

require_debian_and_disk() {
    command -v apt-get >/dev/null ||
        die "CPython can be built here on Debian only; install a python3.13t and set ZLINK_PYTHON to it"
    local free
    free=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
    ((free >= 2000)) || die "the build needs 2 GB of disk in $cache and there are $free MB; ZLINK_CACHE moves it"
}

install_build_dependencies() {
    local missing=() package
    for package in "${build_dependencies[@]}"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    can_be_root || die "the build needs packages that only root can install; run: apt-get install ${missing[*]}"
    say "installing build dependencies: ${missing[*]}"
    as_root apt-get update -qq >&2
    apt_install "${missing[@]}"
}

# A private apt configuration: own lists and cache, one deb-src line, the machine's mirror.
fetch_source() {
    local mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    # shellcheck disable=SC2016 # apt expands it
    mirror=$(apt-get indextargets --no-release-info --format '$(REPO_URI)' 'Created-By: Packages' |
        grep -E '/debian/?$' | head -n 1) || true
    [[ -n $mirror ]] || die "no Debian mirror in this machine's apt sources; set ZLINK_PYTHON to a python3.13t instead"
    [[ -r $keyring ]] || die "no Debian keyring at $keyring; install debian-archive-keyring"
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    echo "deb-src [signed-by=$keyring] $mirror trixie main" >"$work/apt/sources.list"
    local apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=-
               -o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
    say "fetching CPython's source package (30 MB)"
    "${apt[@]}" update >&2
    (cd "$work" && "${apt[@]}" source --download-only python3.13 >&2)
    mkdir "$work/source"
    tar -xJf "$work"/python3.13_3.13.*.orig.tar.xz -C "$work/source" --strip-components=1
}

# Steps are chained: the caller asks for the result in an `if`, and there `set -e` is off. The training run of a
# profile-guided build is the test suite, which fails where SIGINT is ignored (any background job); its profile is good.
compile() {
    local configure=(--prefix="$prefix" --disable-gil --with-ensurepip=install) minutes=5
    if [[ $flags == pgo ]]; then
        configure+=(--enable-optimizations)
        minutes=15
    fi
    say "building CPython $(sed -n 's/^#define PY_VERSION  *"\(.*\)"/\1/p' Include/patchlevel.h)t ($flags);" \
        "about $minutes minutes on two cores; to watch: tail -f $log"
    ./configure -q "${configure[@]}" >"$log" 2>&1 &&
        make -s -j"$(nproc)" PROFILE_TASK='-m test --pgo --timeout=1200 || true' >>"$log" 2>&1 &&
        make -s install DESTDIR="$work/staging" >>"$log" 2>&1
}

# complete PYTHON HOME: it starts, without a GIL, and has the modules that need a library of the machine
complete() {
    PYTHONHOME=$2 "$1" -c 'import ssl, zlib, sqlite3, ctypes, lzma, bz2, sys; assert not sys._is_gil_enabled()'
}

build() {
    rm -rf "$work"
    require_debian_and_disk
    mkdir -p "$work"
    install_build_dependencies
    fetch_source
    if ! (cd "$work/source" && compile); then
        tail -n 20 "$log" >&2
        die "the build failed; the above is the end of $log"
    fi
    complete "$work/staging$python" "$work/staging$prefix" || die "the interpreter that was built lacks a module; see $log"
    rm -rf "$prefix"
    mv "$work/staging$prefix" "$prefix"
    rm -rf "$work"
    say "built $python"
}

unset PYTHON_GIL PYTHONPATH
mkdir -p "$cache"
exec 9>"$cache/build.lock"
if ! flock -n 9; then
    say "another set-up is building CPython; waiting for it"
    flock 9
fi
complete "$python" "$prefix" 2>/dev/null || build
echo "$python"
