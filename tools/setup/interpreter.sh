# shellcheck shell=bash
# Finding the interpreter; sourced after common.sh. `find_interpreter` prints the description of the first that works:
# implementation, version, "free-threaded" or "gil", executable.

# describe PYTHON: fails where it does not run or says nothing, as a pyenv shim for a version that is not selected. The executable is
# the one behind a virtual environment: where .venv is activated, PATH finds .venv's own python3.13t.
describe() {
    "$1" -E -S -c 'import sys
sys.stdout.write("%s %d.%d.%d %s %s\n" % (
    ("PyPy" if "PyPy" in sys.version else "CPython",) + tuple(sys.version_info[:3]) +
    ("free-threaded" if "t" in getattr(sys, "abiflags", "") else "gil",
     getattr(sys, "_base_executable", sys.executable))))' 2>/dev/null </dev/null | grep .
}

describe_free_threaded() {
    local description
    description=$(describe "$1") && [[ $description == "CPython 3.13."*" free-threaded "* ]] && echo "$description"
}

# ZLINK_PYTHON is an order: it is used or refused, never passed over.
describe_chosen() {
    local description implementation version
    local needed="zlink_nogil needs CPython 3.13 or newer, best the free-threaded python3.13t"
    description=$(describe "$ZLINK_PYTHON") || die "ZLINK_PYTHON=$ZLINK_PYTHON does not run as a Python; $needed"
    read -r implementation version _ <<<"$description"
    if [[ $implementation != CPython || ! $version =~ ^3\.(1[3-9]|[2-9][0-9])\. ]]; then
        die "ZLINK_PYTHON=$ZLINK_PYTHON is $implementation $version; $needed"
    fi
    echo "$description"
}

# Only what uv manages itself: PATH has been searched, and uv would start every Python on it.
uv_python() {
    command -v uv >/dev/null && uv python find --managed-python --system --no-project --no-python-downloads --offline 3.13t 2>/dev/null
}

uv_install() {
    command -v uv >/dev/null || return 1
    say "asking uv for python3.13t; up to a minute"
    timeout --foreground 300 uv python install --quiet 3.13t >&2 && return
    say "uv could not get one"
    return 1
}

package_install() {
    can_be_root || return 1
    if apt-cache show python3.13-nogil >/dev/null 2>&1; then
        say "installing the package python3.13-nogil; about a minute"
        apt_install python3.13-nogil python3.13-venv
    elif command -v dnf >/dev/null && dnf -q list python3.13-freethreading >/dev/null 2>&1; then
        say "installing the package python3.13-freethreading; about a minute"
        as_root dnf install -y -q python3.13-freethreading >&2
    else
        return 1
    fi
}

# The places that need no network.
find_local() {
    local candidate flags
    while read -r candidate; do
        describe_free_threaded "$candidate" && return
    done < <(type -ap python3.13t)
    describe_free_threaded "$(uv_python)" && return
    for flags in pgo O3; do
        describe_free_threaded "$(cached_prefix "$flags")/bin/python3.13t" && return
    done
    return 1
}

find_interpreter() {
    local candidate
    if [[ -n ${ZLINK_PYTHON:-} ]]; then
        describe_chosen
        return
    fi
    find_local && return
    say "no free-threaded CPython 3.13 (python3.13t) on this machine; getting one, once"
    uv_install && find_local && return
    package_install && find_local && return
    candidate=$("$root/tools/setup/build_cpython.sh")
    describe "$candidate"
}
