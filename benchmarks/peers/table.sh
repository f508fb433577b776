#!/bin/sh
# Every figure of docs/lab/benchmarks.md that stands beside llama.cpp. As root (memory control groups), on a quiet machine:
#
#     benchmarks/peers/table.sh prepare WORK CONFIGS    # checkpoints, GGUFs, stores: 15 min, 45 GB
#     benchmarks/peers/table.sh measure WORK            # 25 min
#     benchmarks/peers/table.sh bf16-limited WORK       # 15 min more: the peer reads as much as it can
#     benchmarks/peers/table.sh quality WORK TEXTS      # 5 min
#
# CONFIGS has qwen3-30b-a3b/config.json and mixtral-8x7b/config.json; TEXTS has prompts/bench_prompts.jsonl and corpus/.
# PYTHON names the interpreter.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python}
verb=$1 work=$2
export MOEINF_HOME="$work/home" TMPDIR="$work"

# geometry NAME CONFIG OPTIONS...: a random checkpoint in our three formats and in llama.cpp's
geometry() {
    name=$1 config=$2
    shift 2
    "$python" "$here/../make_checkpoint.py" "$config" "$work/$name" "$@"
    "$python" "$here/gguf_files/to_gguf.py" "$work/$name" "$work/$name-bf16.gguf"
    for type in Q8_0 Q4_K_S; do
        "$python" "$here/gguf_files/quantise_gguf.py" "$work/$name-bf16.gguf" "$work/$name-$type.gguf" "$type"
    done
    "$python" -m moeinf pull "$work/$name" --name "$name:bf16"
    for format in q8_0 q4_k; do "$python" -m moeinf pull "$work/$name" --name "$name:$format" --quant "$format"; done
    rm -r "${work:?}/$name"
}

prepare() {
    mkdir -p "$work"
    geometry qwen4 "$1/qwen3-30b-a3b/config.json" --layers 4
    geometry mixtral2 "$1/mixtral-8x7b/config.json" --layers 2
    geometry spread "$1/qwen3-30b-a3b/config.json" --layers 2 --vocab 4096 --embedding-scale 0.04
    "$python" "$here/gguf_files/quantise_gguf.py" "$work/spread-bf16.gguf" "$work/spread-Q4_K-pure.gguf" Q4_K_S --pure
    "$python" "$here/gguf_files/to_gguf.py" "$here/../../src/moeinf/data/demo" "$work/demo-bf16.gguf"
    for type in Q8_0 Q4_0 IQ4_NL; do
        "$python" "$here/gguf_files/quantise_gguf.py" "$work/demo-bf16.gguf" "$work/demo-$type.gguf" "$type"
    done
    for format in keep q8_0 q4_0 iq4_nl mxfp4; do
        "$python" -m moeinf pull demo --name "demo:$format" --quant "$format"
    done
}

# compare NAME "FORMAT=TYPE ..." OPTIONS...
compare() {
    name=$1 pairs="" formats=$2
    shift 2
    for format in $formats; do pairs="$pairs $name:${format%=*}=$work/$name-${format#*=}.gguf"; done
    # shellcheck disable=SC2086  # pairs are words
    "$python" "$here/compare_llamacpp.py" $pairs "$@"
}

measure() {
    for name in qwen4 mixtral2; do
        compare $name "bf16=bf16 q8_0=Q8_0 q4_k=Q4_K_S" --rounds 3 --passages 3 --json "$work/$name-resident.json"
        compare $name "q8_0=Q8_0 q4_k=Q4_K_S" --limit 33.3% --rounds 5 --passages 2 --decode 16 \
            --json "$work/$name-limited.json"
    done
}

bf16_limited() {
    for name in qwen4 mixtral2; do
        compare $name bf16=bf16 --limit 33.3% --rounds 5 --passages 2 --decode 16 --json "$work/$name-bf16-limited.json"
    done
}

quality() {
    corpus=""
    for text in fiction_en fiction_fr fiction_de code_python_stdlib math_gsm8k_train; do
        corpus="$corpus --text $1/corpus/$text.txt"
    done
    held_out="--text $1/prompts/bench_prompts.jsonl"
    stores="demo:keep demo:q8_0 demo:q4_0 demo:iq4_nl demo:mxfp4"
    cd "$work"
    # shellcheck disable=SC2086  # lists are words
    for text in "$held_out --tokens 32768" "$corpus --tokens 6144"; do
        "$python" "$here/quality.py" $stores demo-bf16.gguf demo-Q8_0.gguf demo-Q4_0.gguf demo-IQ4_NL.gguf $text
        "$python" "$here/quality.py" $stores $text --rows 8
    done
    for rows in 512 8; do
        "$python" "$here/quality.py" spread:bf16 spread:q8_0 spread:q4_k spread-bf16.gguf spread-Q8_0.gguf \
            spread-Q4_K_S.gguf spread-Q4_K-pure.gguf $held_out --tokens 2048 --rows $rows
    done
}

shift 2
case $verb in
prepare) prepare "$@" ;;
measure) measure ;;
bf16-limited) bf16_limited ;;
quality) quality "$@" ;;
*) echo "$0: prepare, measure, bf16-limited or quality, not $verb" >&2; exit 2 ;;
esac
