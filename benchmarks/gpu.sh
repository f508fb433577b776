#!/bin/sh
# Every figure of docs/lab/benchmarks.md under GPU, row by row, each step within 10 minutes on an H200 and 16 cores:
#
#     benchmarks/gpu.sh carry FOLDER                 # elsewhere, with a registry: a wheel of moeinf, and those it needs
#     benchmarks/gpu.sh rehearse WORK [STEP...]      # elsewhere, without a card: all below but install, in small numbers
#     benchmarks/gpu.sh install [FOLDER]             # into PYTHON's environment, without a registry
#     benchmarks/gpu.sh all WORK CONFIGS [STEP...]   # smoke, families and the rows, by worth, in MINUTES (30)
#     benchmarks/gpu.sh smoke                        # tests/gpu, eight at a time: two minutes on 16 cores
#     benchmarks/gpu.sh families                     # of these tests the logits of five families
#     benchmarks/gpu.sh sanitize                     # the kernels' tests under compute-sanitizer: memory, then races
#     benchmarks/gpu.sh prepare WORK CONFIGS ROW...  # random weights, drawn on the GPU
#     benchmarks/gpu.sh measure WORK ROW...          # prints Markdown or JSON, and keeps JSON in WORK/results
#     benchmarks/gpu.sh clean WORK ROW...            # before the next row, where the disk is small
#
# `all` gives each step STEP_SECONDS (480) at most, goes on where one fails, and writes what it took and how it ended
# into WORK/results/steps.txt; what a step printed is in WORK/results/STEP.log. Vision towers have no row: they run on
# the CPU, where benchmarks/picture_time.py times them.
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
# run by a Python of the machine's minor version, on the same kind of processor; its FOLDER has some 20 MB, and at most 60. Without
# FOLDER, `install` builds moeinf on the machine: nanobind, scikit-build-core, cmake, ninja, a C++ compiler, Python's
# headers. CONFIGS has config.json of qwen3-30b-a3b, mixtral-8x7b and deepseek-v2-lite, each in its folder. WORK may lie
# in /dev/shm, where memory allows: experts are then read from memory, not from a disk.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
gpu=${DEVICE:-cuda:0}
cards=${CARDS:-cuda:0,cuda:1}

# what a rehearsal has less of: layers, tokens read and decoded, requests, tests; and its peers know no emulated card
most_layers=${MOST_LAYERS:-48}
lengths=${LENGTHS:--p 512 -n 128 -r 3}
peer_lengths=${PEER_LENGTHS:---prompt 512 --decode 64 --rounds 2 --passages 3}
peer_gpu=${PEER_DEVICE:-$gpu}
token_words=${TOKEN_WORDS:-}
kernel_words=${KERNEL_WORDS:-}
smoke_words=${SMOKE_WORDS:--n 8 tests/gpu}
family_words=${FAMILY_WORDS:--n 5 tests/gpu/test_families.py}
sanitize_words=${SANITIZE_WORDS:-tests/gpu/test_kernels.py}
five_families="qwen3_moe or mixtral or gpt_oss or deepseek_v2 or glm4_moe"

# what images with torch tend to lack; the newest that this Python can have, for any Linux that is not older than 2021
most_carried_kb=61440
carried="gguf llguidance msgspec prometheus_client prompt_toolkit starlette uvicorn wcwidth"

carry() {
    mkdir -p "$1"
    "$python" -m pip wheel -q --no-deps -w "$1" "$here/.."
    "$python" -m pip download -q --no-deps --only-binary=:all: -d "$1" $carried
    kb=$(du -sk "$1" | cut -f1)
    [ "$kb" -le $most_carried_kb ] || { echo "$0: $1 has $kb KiB, more than $most_carried_kb" >&2 && exit 1; }
    echo "$1: $kb KiB"
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
        token) store "$configs/qwen3-30b-a3b/config.json" qwen12:q4_k --layers "$(layers 12)" --quant q4_k ;;
        resident | host-time)
            [ -d "$work/qwen12" ] || "$python" "$here/make_checkpoint.py" "$configs/qwen3-30b-a3b/config.json" \
                "$work/qwen12" --layers "$(layers 12)" --device "$gpu"
            "$python" -m moeinf pull "$work/qwen12" --name qwen12:bf16 -q
            ;;
        12gb | cards) store "$configs/qwen3-30b-a3b/config.json" qwen48:q4_k --layers "$(layers 48)" --quant q4_k ;;
        24gb) store "$configs/mixtral-8x7b/config.json" mixtral32:q4_k --layers "$(layers 32)" --quant q4_k ;;
        24gb-bf16) store "$configs/deepseek-v2-lite/config.json" deepseek27:bf16 --layers "$(layers 27)" ;;
        *) unknown "$row" ;;
        esac
    done
}

layers() { [ "$1" -lt "$most_layers" ] && echo "$1" || echo "$most_layers"; }

# store CONFIG NAME OPTIONS...: a stored model, without a checkpoint
store() {
    "$python" "$here/make_store.py" "$@" --device "$gpu" --scratch "$work/scratch"
}

measure() {
    mkdir -p "$work/results"
    for row in "$@"; do
        case $row in
        kernels) shown kernels gpu/kernel_times.py $kernel_words ;;
        token)
            shown token-all gpu/token_on_gpu.py qwen12:q4_k --device "$gpu" --expert-cache 100% $token_words
            shown token-third gpu/token_on_gpu.py qwen12:q4_k --device "$gpu" --expert-cache 30% $token_words
            ;;
        resident)
            "$python" "$here/peers/compare_transformers.py" "qwen12:bf16=$work/qwen12" --device "$peer_gpu" \
                --cache 100% --cache 50% $peer_lengths --json "$work/results/resident.json"
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
        "$python" -m moeinf bench "$@" --device "$gpu" $lengths -o json >"$work/results/$result-$number.json"
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

# pytest_of WORDS...: without Triton's interpreter, unless this is a rehearsal
pytest_of() {
    cd "$here/.."
    unset TRITON_INTERPRET
    "$python" -m pytest -q -p no:cacheprovider "$@"
}

smoke() { pytest_of $smoke_words; }

families() { pytest_of $family_words -k "$five_families"; }

sanitize() {
    command -v compute-sanitizer >/dev/null || {
        echo "$0: compute-sanitizer is missing; it comes with CUDA's toolkit (cuda-sanitizer)" >&2
        exit 1
    }
    cd "$here/.."
    unset TRITON_INTERPRET
    # torch's allocator gives out parts of large blocks, in which nothing is out of bounds
    for tool in memcheck racecheck; do
        PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool=$tool --error-exitcode=9 --target-processes=all \
            "$python" -m pytest -q -p no:cacheprovider $sanitize_words
    done
}

# all CONFIGS [STEP...]: by worth
all() {
    configs=$1
    shift
    [ $# -gt 0 ] || set -- smoke families kernels token resident host-time 12gb cards 24gb 24gb-bf16 sanitize
    mkdir -p "$work/results"
    : >"$work/results/steps.txt"
    ends=$(($(date +%s) + 60 * ${MINUTES:-30})) failures=0
    for step in "$@"; do
        begins=$(date +%s) left=$((ends - $(date +%s)))
        [ $left -gt 0 ] || { note "$step" "left out: the time is over" && continue; }
        [ $left -lt "${STEP_SECONDS:-480}" ] || left=${STEP_SECONDS:-480}
        case $step in
        smoke | families | sanitize) timeout $left "$0" "$step" >"$work/results/$step.log" 2>&1 ;;
        *) timeout $left "$0" row "$work" "$configs" "$step" >"$work/results/$step.log" 2>&1 ;;
        esac && ended=done || ended="failed with $?: see $work/results/$step.log" failures=1
        note "$step" "$(($(date +%s) - begins)) s, $ended"
    done
    return $failures
}

note() { echo "$1: $2" | tee -a "$work/results/steps.txt"; }

# row CONFIGS ROW
row() {
    prepare "$1" "$2"
    measure "$2"
    case $2 in
    resident | 12gb) ;; # host-time and cards have their models, and remove them
    *) clean "$2" ;;
    esac
}

# rehearse [STEP...]: two layers, a few tokens, and two GPUs that are emulated
rehearse() {
    logits=tests/gpu/test_families.py::test_logits_of_every_family_are_those_of_the_cpu
    (cd "$here/.." && "$python" -m tests.rehearsal "$work")
    PATH="$work/bin:$PATH" PYTHON="$work/bin/python" MOST_LAYERS=2 LENGTHS="-p 32 -n 4 -r 1" PEER_DEVICE=cpu \
        PEER_LENGTHS="--prompt 32 --decode 4 --rounds 1 --passages 1" TOKEN_WORDS="--tokens 4" \
        KERNEL_WORDS="--small --formats q8_0,mxfp4" SMOKE_WORDS="$logits -k qwen3_moe" \
        FAMILY_WORDS="$logits" SANITIZE_WORDS="tests/gpu/test_kernels.py -k routing" \
        "$0" all "$work" "$work/configs" "$@"
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
smoke | families | sanitize)
    "$verb"
    exit
    ;;
prepare | measure | clean | all | row | rehearse) ;;
*)
    echo "$0: carry, rehearse, install, all, smoke, families, sanitize, prepare, measure or clean, not '$verb'" >&2
    exit 2
    ;;
esac
mkdir -p "${2:?a folder to work in is missing}"
work=$(cd "$2" && pwd)
export MOEINF_HOME="$work/home" TMPDIR="$work"
shift 2
"$verb" "$@"
