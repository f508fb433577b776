#!/bin/sh
# Every figure of docs/lab/benchmarks.md under GPU, row by row, each step within 10 minutes on an H200 and 16 cores:
#
#     benchmarks/gpu.sh install                      # moeinf into PYTHON's environment, without a registry
#     benchmarks/gpu.sh prepare WORK CONFIGS ROW...  # random weights, drawn on the GPU
#     benchmarks/gpu.sh measure WORK ROW...          # prints Markdown or JSON, and keeps JSON in WORK/results
#     benchmarks/gpu.sh clean WORK ROW...            # before the next row, where the disk is small
#
# ROW         needs (disk)   what
# resident    30 GB          Qwen3-30B-A3B geometry, 12 layers, bf16: all and half of the experts on the GPU, beside
#                            transformers and transformers + accelerate
# 12gb        17 GB          Qwen3-30B-A3B geometry, 48 layers, q4_k, --vram 12GB
# cards       17 GB          the same on one card and on two, 8 GB of each; CARDS names two (cuda:0,cuda:1)
# 24gb        27 GB          Mixtral-8x7B geometry, 32 layers, q4_k, --vram 24GB
# 24gb-bf16   32 GB          DeepSeek-V2-Lite geometry, 27 layers, bf16, --vram 24GB
# host-time   as resident    where the host's time of a token goes: all, and half of the experts on the GPU
#
# It needs torch for CUDA with its triton, what pyproject.toml lists under dependencies (huggingface_hub, jinja2, numpy,
# prompt_toolkit, rich, tokenizers, typer: `install` fetches nothing), transformers, accelerate, nanobind,
# scikit-build-core, cmake, ninja, a C++ compiler, Python's headers, and no network. CONFIGS has config.json of qwen3-30b-a3b, mixtral-8x7b and deepseek-v2-lite, each in its folder. WORK may lie in
# /dev/shm, where memory allows: experts are then read from memory, not from a disk.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
gpu=${DEVICE:-cuda:0}
cards=${CARDS:-cuda:0,cuda:1}

install() {
    "$python" -m pip install -q --no-index --no-build-isolation --no-deps "$here/.."
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
    for row in "$@"; do
        case $row in
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
        12gb | cards) "$python" -m moeinf rm qwen48:q4_k ;;
        24gb) "$python" -m moeinf rm mixtral32:q4_k ;;
        24gb-bf16) "$python" -m moeinf rm deepseek27:bf16 ;;
        *) unknown "$row" ;;
        esac
    done
}

unknown() {
    echo "$0: no row $1; known: resident, 12gb, cards, 24gb, 24gb-bf16, host-time" >&2
    exit 2
}

verb=${1:-}
case $verb in
install)
    install
    exit
    ;;
prepare | measure | clean) ;;
*)
    echo "$0: install, prepare, measure or clean, not '$verb'" >&2
    exit 2
    ;;
esac
work=$2
export MOEINF_HOME="$work/home" TMPDIR="$work"
shift 2
"$verb" "$@"
