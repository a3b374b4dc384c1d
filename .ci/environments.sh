# What .ci/run and .ci/deep share: the Pythons, their virtual environments, and how long each stage takes.

if [ -z "${MINIDL_DATA:-}" ] && [ -d ../shared/data ]; then
    MINIDL_DATA=$(cd ../shared/data && pwd)
    export MINIDL_DATA
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1

# An emulated kernel is compiled once for all stages and later runs: its file is named by all that it depends on.
export MINIDL_EMULATED=${MINIDL_EMULATED:-$PWD/.emulated}
find "$MINIDL_EMULATED" -mindepth 1 -mtime +30 -delete 2>/dev/null || true

# No newer one than CuPy has wheels for
version='import sys; v = sys.version_info; (3, 10) <= v < (3, 15) and print(f"{v[0]}.{v[1]:02}", sys.executable)'
found=$(for python in python3 python3.{10..19} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
            "$python" -c "$version" 2>/dev/null || true
        done | sort -u -k 1,1)
oldest=$(head -n 1 <<<"$found" | cut -d ' ' -f 2)
newest=$(tail -n 1 <<<"$found" | cut -d ' ' -f 2)

# The lock names the compiler of kernels: with another one, each row would be another.
nvrtc=$(sed -n '1s/^nvrtc /nvidia-cuda-nvrtc==/p' tests/cuda/kernels.lock)

# environment FOLDER EXTRAS PYTHON PACKAGE...: a new one, with what setup.cfg names for the extras; it is all installed in
# the background, while tests run.
declare -A making extras
environment() {
    local folder=$1 python=$3
    extras[$folder]=$2
    shift 3
    mapfile -t needed < <("$python" -c 'import configparser, sys
found = configparser.ConfigParser()
found.read("setup.cfg")
print(found["options"]["install_requires"], *map(found["options.extras_require"].get, sys.argv[1].split(",")), sep="\n")
' "${extras[$folder]}" | sed '/^$/d')
    (rm -rf "$folder" && "$python" -m venv "$folder" &&
        "$folder/bin/pip" install --quiet pytest-xdist "$@" "${needed[@]}") &
    making[$folder]=$!
}

# ready FOLDER: wait for it, and add minidl. One after the other: each writes minidl.egg-info.
ready() {
    wait "${making[$1]}"
    "$1/bin/pip" install --quiet -e ".[${extras[$1]}]"
    "$1/bin/python" --version
}

newest_environment() {
    environment .venv-newest dev,docs,plot,image,safetensors,onnx,metrics,tensorboard,mpi "$newest" \
        cupy-cuda13x==14.2.0 'cuda-core[cu13]' "$nvrtc" jedi
}
newest_ready() { ready .venv-newest; }
torch_environment() { environment .venv-torch test,onnx python3 torch==2.13.0; }
torch_ready() { ready .venv-torch; }

# stage TEXT: what begins now, and how long all took until here: seconds, processor time of this shell, of what it ran
stage() {
    printf '\n=== after %d s: %s\n' "$SECONDS" "$1"
    times
}
