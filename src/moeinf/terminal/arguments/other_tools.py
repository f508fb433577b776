"""Options of ollama, llama.cpp, mlx-lm, vLLM, SGLang and transformers, and what moeinf has instead."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

FORMATS = "`moeinf pull SOURCE --quant q8_0 --name NAME` stores a model so, and FROM NAME is made of that"
_FORM = "weights are computed with in the form in which `moeinf pull --quant FORMAT` stores them"
_CONTEXT = "--num-ctx N is the length of the context"
_LENGTH = "--num-predict N is the most tokens of an answer"
_VRAM = "--vram SIZE bounds what is used of a GPU, also as 90%"
_EXPERTS = "experts lie on the GPU, in RAM or on the disk as there is room: leave it out, or bound that by --vram SIZE"
_MAPPED = "experts are read into a cache, and all else is held in memory: leave it out, or bound both by --ram SIZE"
_ITSELF = "that is found in the model itself: leave it out"
_ALWAYS = "that is always done where it is possible: leave it out"
_CHUNK = "--prefill-chunk N is how many tokens of a prompt run together"
_CACHE = "--kv-cache q8_0 keeps keys and values in 8 bits"
_SERVED = "`moeinf serve` always offers that: leave it out"
_PROMPT = "the prompt stands behind the name of the model, without an option"
_NAME = "the name of a model stands behind `run`, without an option, and clients of `serve` name it"
_THOUGHT = "--think=false, low, medium, high or max says whether and how hard to think"
_GUESSED = "--speculate auto, off or always, and --draft-max N, say what is guessed at"
_CHAT = "`moeinf run MODEL` without a prompt opens a chat"
_NO_TOOLS = "the model runs no programs here: leave it out"
_NO_EMBEDDINGS = "`moeinf serve` makes embeddings, at /v1/embeddings"
_DEVICE = "--device cpu or cuda says where to compute"
_CARDS = "--devices cuda:0,cuda:1 names the cards that share a model"
_SIDE_BY_SIDE = "--parallel N is how many answers a model makes side by side"

# Options, an option that the verb must have for the cure ("" where it helps with any verb), and the cure.
_CURES: tuple[tuple[str, str, str], ...] = (
    ("--quantize --quantise --quantization", "", FORMATS),
    ("--dtype --torch-dtype --load-in-4bit --load-in-8bit", "", _FORM),
    ("--keep-alive", "--keepalive", "--keepalive TIME keeps the model loaded after the answer"),
    ("--insecure", "", "`export HF_ENDPOINT=http://HOST` has models pulled from there, with its own scheme"),
    ("--dimensions --truncate", "", _NO_EMBEDDINGS),
    ("--experimental --experimental-yolo --experimental-websearch", "", _NO_TOOLS),
    ("--n-gpu-layers --gpu-layers --num-gpu -ngl", "--vram", _VRAM),
    ("--gpu-memory-utilization --mem-fraction-static", "--vram", _VRAM),
    ("--n-cpu-moe --cpu-moe --override-tensor --cpu-offload-gb --offload -ncmoe -cmoe", "--vram", _EXPERTS),
    ("--mlock --no-mmap --mmap", "--ram", _MAPPED),
    ("--ctx-size --context-length --context-size --max-model-len --max-seq-len --max-kv-size", "--num-ctx", _CONTEXT),
    ("--max-tokens --max-new-tokens --max-completion-tokens --n-predict", "--num-predict", _LENGTH),
    ("--cache-type-k --cache-type-v --kv-cache-dtype --kv-bits -ctk -ctv", "--kv-cache", _CACHE),
    ("--batch-size --ubatch-size --prefill-step-size", "--prefill-chunk", _CHUNK),
    ("--flash-attn --enable-prefix-caching --cont-batching", "", _ALWAYS),
    ("--jinja --chat-template --chat-template-file --enable-auto-tool-choice", "", _ITSELF),
    ("--tool-call-parser --reasoning-parser --reasoning-format", "", _ITSELF),
    ("--reasoning-budget --reasoning-effort --enable-thinking", "--think", _THOUGHT),
    ("--tensor-parallel-size --tp-size --tp --tensor-split", "--devices", _CARDS),
    ("--cpu --gpu", "--device", _DEVICE),
    ("--num-parallel --max-num-seqs --max-running-requests", "--parallel", _SIDE_BY_SIDE),
    ("--speculative-config", "--speculate", _GUESSED),
    ("--spec-draft-n-max", "--draft-max", "--draft-max N is how many tokens a step guesses at"),
    ("--model-draft", "--draft", "--draft MODEL is a small model that guesses, too"),
    ("--model --model-path --hf-repo -m", "", _NAME),
    ("--prompt -p", "--system", _PROMPT),
    ("--system-prompt --sys-prompt", "--system", "--system TEXT is the system message"),
    ("--conversation --interactive --chat -cnv", "--system", _CHAT),
    ("--image", "--system", "the path of a picture stands among the words of the prompt"),
    ("--adapter-path --lora-modules", "--lora", "--lora ADAPTER merges a LoRA adapter of PEFT into the weights"),
    ("--logprobs --top-logprobs", "--system", "`moeinf serve` tells them, at /v1/chat/completions"),
    ("--api-key", "--key-file", "--key-file PATH or MOEINF_API_KEY says which keys clients must give"),
    ("--cors --allow-credentials", "--allowed-origin", "--allowed-origin URL lets a web page call this server"),
    ("--metrics --slots --embedding --embeddings", "--allowed-origin", _SERVED),
    ("--served-model-name --alias", "", "`moeinf cp MODEL NAME` gives a model one more name"),
    ("--download-dir --cache-dir", "", "MOEINF_HOME is the folder in which models are stored"),
    ("--trust-remote-code", "", "no code of a checkpoint is ever run: leave it out"),
)


def _each() -> Iterator[tuple[str, tuple[str, str]]]:
    for options, needed, cure in _CURES:
        for option in options.split():
            yield option, (needed, cure)


_OF_OPTION: Mapping[str, tuple[str, str]] = dict(_each())


def cure_of(option: str, known: Collection[str]) -> str:
    """What a verb with the options `known` has instead; "" where nothing is known of it."""
    needed, cure = _OF_OPTION.get(option, ("", ""))
    return cure if needed in ("", *known) else ""
