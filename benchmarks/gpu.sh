#!/bin/sh
# Every figure of docs/lab/benchmarks.md under GPU, row by row, each step within 10 minutes on an H200 and 16 cores:
#
#     benchmarks/gpu.sh carry FOLDER                 # elsewhere, with a registry: a wheel of moeinf, and those it needs
#     benchmarks/gpu.sh install [FOLDER]             # into PYTHON's environment, without a registry
#     benchmarks/gpu.sh smoke                        # tests/gpu, eight at a time: two minutes on 16 cores
#     benchmarks/gpu.sh prepare WORK CONFIGS ROW...  # random weights, drawn on the GPU
#     benchmarks/gpu.sh measure WORK ROW...          # prints Markdown or JSON, and keeps JSON in WORK/results
#     benchmarks/gpu.sh clean WORK ROW...            # before the next row, where the disk is small
#
# ROW         needs (disk)   what
# kernels     none           each kernel of a token and of a prompt, by format: one minute
# token       5 GB           Qwen3-30B-A3B geometry, 12 layers, q4_k: where the time of a token and of a prompt goes
# resident    30 GB          Qwen3-30B-A3B geometry, 12 layers, bf16: all and half of the experts on the GPU, beside
#                            transformers and transformers + accelerate
# 12gb        17 GB          Qwen3-30B-A3B geometry, 48 layers, q4_k, --vram 12GB
# cards       17 GB          the same on one card and on two, 8 GB of each; CARDS names two (cuda:0,cuda:1)
# 24gb        27 GB          Mixtral-8x7B geometry, 32 layers, q4_k, --vram 24GB
# 24gb-bf16   32 GB          DeepSeek-V2-Lite geometry, 27 layers, bf16, --vram 24GB
# host-time   as resident    where the host's time of a token goes: all, and half of the experts on the GPU
#
# It needs torch for CUDA with its triton, what pyproject.toml lists under dependencies, for `smoke` what tests/ import
# (pytest, pytest-xdist, hypothesis, gguf, safetensors, transformers), for peers accelerate, and no network. `carry` is
# run by a Python of the machine's minor version, on the same kind of processor; its FOLDER has some 20 MB. Without
# FOLDER, `install` builds moeinf on the machine: nanobind, scikit-build-core, cmake, ninja, a C++ compiler, Python's
# headers. CONFIGS has config.json of qwen3-30b-a3b, mixtral-8x7b and deepseek-v2-lite, each in its folder. WORK may lie
# in /dev/shm, where memory allows: experts are then read from memory, not from a disk.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
gpu=${DEVICE:-cuda:0}
cards=${CARDS:-cuda:0,cuda:1}

# what images with torch tend to lack; the newest that this Python can have, for any Linux that is not older than 2021
carried="gguf llguidance msgspec prometheus_client prompt_toolkit starlette uvicorn wcwidth"

carry() {
    mkdir -p "$1"
    "$python" -m pip wheel -q --no-deps -w "$1" "$here/.."
    "$python" -m pip download -q --no-deps --only-binary=:all: -d "$1" $carried
    du -sh "$1"
}

install() {
    if [ -n "${1:-}" ]; then
        "$python" -m pip install -q --no-index --no-deps "$1"/*.whl
    else
        "$python" -m pip install -q --no-index --no-build-isolation --no-deps "$here/.."
    fi
    "$python" -c 'import moeinf._native, torch, triton; print("torch", torch.__version__, "triton", triton.__version__)'
    grep -E "MemTotal|MemAvailable" /proc/meminfo # a virtual machine may grow only when its memory is touched
    nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max --format=csv
}

prepare() {
    configs=$1
    shift
    mkdir -p "$work/results"
    for row in "$@"; do
        case $row in
        kernels) ;;
        token) store "$configs/qwen3-30b-a3b/config.json" qwen12:q4_k --layers 12 --quant q4_k ;;
        resident | host-time)
            [ -d "$work/qwen12" ] || "$python" "$here/make_checkpoint.py" "$configs/qwen3-30b-a3b/config.json" \
                "$work/qwen12" --layers 12 --device "$gpu"
            "$python" -m moeinf pull "$work/qwen12" --name qwen12:bf16 -q
            ;;
        12gb | cards) store "$configs/qwen3-30b-a3b/config.json" qwen48:q4_k --layers 48 --quant q4_k ;;
        24gb) store "$configs/mixtral-8x7b/config.json" mixtral32:q4_k --layers 32 --quant q4_k ;;
        24gb-bf16) store "$configs/deepseek-v2-lite/config.json" deepseek27:bf16 --layers 27 ;;
        *) unknown "$row" ;;
        esac
    done
}

# store CONFIG NAME OPTIONS...: a stored model, without a checkpoint
store() {
    "$python" "$here/make_store.py" "$@" --device "$gpu" --scratch "$work/scratch"
}

measure() {
    mkdir -p "$work/results"
    for row in "$@"; do
        case $row in
        kernels) shown kernels gpu/kernel_times.py ;;
        token)
            shown token-all gpu/token_on_gpu.py qwen12:q4_k --device "$gpu" --expert-cache 100%
            shown token-third gpu/token_on_gpu.py qwen12:q4_k --device "$gpu" --expert-cache 30%
            ;;
        resident)
            "$python" "$here/peers/compare_transformers.py" "qwen12:bf16=$work/qwen12" --device "$gpu" --cache 100% \
                --cache 50% --rounds 2 --passages 3 --prompt 512 --decode 64 --json "$work/results/resident.json"
            ;;
        12gb) bench 12gb qwen48:q4_k --vram 12GB ;;
        cards)
            bench one-card qwen48:q4_k --vram 8GB
            (gpu=$cards && bench two-cards qwen48:q4_k --vram 8GB)
            ;;
        24gb) bench 24gb mixtral32:q4_k --vram 24GB ;;
        24gb-bf16) bench 24gb-bf16 deepseek27:bf16 --vram 24GB ;;
        host-time)
            bench host-time-resident qwen12:bf16 --expert-cache 100% --profile
            bench host-time-half qwen12:bf16 --expert-cache 50% --profile
            ;;
        *) unknown "$row" ;;
        esac
    done
}

# shown RESULT SCRIPT WORDS...: what it prints is kept as well; not by a pipe, which would hide that it failed
shown() {
    result=$work/results/$1.txt script=$here/$2
    shift 2
    "$python" "$script" "$@" >"$result" || { cat "$result" && exit 1; }
    cat "$result"
}

# bench RESULT MODEL OPTIONS...: twice, as one process is one sample
bench() {
    result=$1
    shift
    for number in 1 2; do
        "$python" -m moeinf bench "$@" --device "$gpu" -p 512 -n 128 -r 3 -o json >"$work/results/$result-$number.json"
        "$python" "$here/peers/bench_rows.py" "$work/results/$result-$number.json"
    done
}

clean() {
    for row in "$@"; do
        case $row in
        resident | host-time)
            rm -rf "${work:?}/qwen12"
            "$python" -m moeinf rm qwen12:bf16
            ;;
        kernels) ;;
        token) "$python" -m moeinf rm qwen12:q4_k ;;
        12gb | cards) "$python" -m moeinf rm qwen48:q4_k ;;
        24gb) "$python" -m moeinf rm mixtral32:q4_k ;;
        24gb-bf16) "$python" -m moeinf rm deepseek27:bf16 ;;
        *) unknown "$row" ;;
        esac
    done
}

unknown() {
    echo "$0: no row $1; known: kernels, token, resident, 12gb, cards, 24gb, 24gb-bf16, host-time" >&2
    exit 2
}

verb=${1:-}
case $verb in
install)
    install "${2:-}"
    exit
    ;;
carry)
    carry "${2:?a folder for the wheels is missing}"
    exit
    ;;
smoke)
    cd "$here/.."
    unset TRITON_INTERPRET
    exec "$python" -m pytest -q -p no:cacheprovider -n 8 tests/gpu
    ;;
prepare | measure | clean) ;;
*)
    echo "$0: carry, install, smoke, prepare, measure or clean, not '$verb'" >&2
    exit 2
    ;;
esac
work=$2
export MOEINF_HOME="$work/home" TMPDIR="$work"
shift 2
"$verb" "$@"
