# shellcheck shell=bash
# The virtual environment; sourced after common.sh. `prepare_environment` makes .venv where it is missing, half-made or
# out of date. It reads root, python, version and threading.

venv=$root/.venv

# Everything that decides what .venv holds; the root too, as a copied or moved .venv names the old place.
environment_stamp() {
    {
        echo "$root $python $version"
        cat "$root/pyproject.toml" "$root/tools/constraints.txt" "$root/tools/setup/environment.sh"
    } | sha256sum
}

environment_is_ready() { [[ -f $venv/stamp && $(<"$venv/stamp") == "$1" ]]; }

# Binary packages only: newest releases of some are source that needs a Rust registry.
pip_install() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input -qq install \
        --constraint "$root/tools/constraints.txt" --only-binary :all: "$@"
}

# orjson has no binary package for 3.13t, and releases from 3.13 on no longer build there. It may be missing.
install_orjson() {
    if [[ $threading == gil ]]; then
        pip_install orjson
    elif cargo --version >/dev/null 2>&1; then
        say "building orjson, the faster JSON codec; about a minute"
        pip_install maturin &&
            PATH=$venv/bin:$PATH ORJSON_BUILD_FREETHREADED=1 pip_install --no-build-isolation --no-binary orjson orjson
    else
        say "no Rust compiler (cargo): going on without orjson, with the standard json"
    fi
}

make_environment() {
    say "making the environment .venv for $python ($version, $threading); about half a minute," "with the package index"
    "$python" -m venv "$venv" || die "$python cannot make a virtual environment (does its venv or ensurepip package lack?)"
    # What builds the project itself comes first, pinned too, instead of unpinned into a build environment of its own.
    pip_install hatchling editables || die "the packages could not be installed; see above; is the package index reachable?"
    pip_install --no-build-isolation --editable "${root}[dev]" || die "the packages could not be installed; see above"
    install_orjson || say "orjson could not be installed (see above): going on with the standard json"
    say "the environment is ready"
}

# The stamp is written last, so an interrupted set-up is done again.
prepare_environment() {
    local stamp
    stamp=$(environment_stamp)
    environment_is_ready "$stamp" && return
    (
        if ! flock -n 9; then
            say "another set-up is making .venv; waiting for it"
            flock 9
        fi
        environment_is_ready "$stamp" && exit
        rm -rf "$venv"
        make_environment
        echo "$stamp" >"$venv/stamp"
    ) 9>"$root/.venv.lock"
}
