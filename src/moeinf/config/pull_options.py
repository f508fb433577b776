"""What a pull may be told."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.config.option import option


@dataclass(frozen=True, slots=True)
class PullOptions:
    """How a model is fetched and stored.

    quant: format of the weights (store.quantisation.CHOICES), which quant_experts and quant_dense override. Without
    any, it is the format of the source, and of a stored model its own. One that is given becomes the tag, `demo:q4_k`,
    unless `name` has a tag. The default of `name` is the alias, or the last component of the source in lower case.
    """

    name: str | None = option(None, "Store it under this name; one without a tag gets --quant's.", metavar="NAME")
    quant: str | None = option(
        None,
        "Store weights as keep, q8_0, q6_k, q5_k, q5_1, q5_0, q4_k, q4_1, q4_0, iq4_nl, iq4_xs, q3_k, iq3_s, "
        "iq3_xxs, q2_k, iq2_s, iq2_xs, iq2_xxs or mxfp4. [default: keep]",
        metavar="FORMAT",
    )
    quant_experts: str | None = option(None, "Store the experts in another format.", metavar="FORMAT")
    quant_dense: str | None = option(None, "Store the other weights in another format.", metavar="FORMAT")
    lora: str | None = option(
        None,
        "Merge a LoRA adapter into the weights: its folder (PEFT) or GGUF file, or org/repo[@revision].",
        metavar="ADAPTER",
    )
    revision: str | None = option(None, "Branch, tag or commit to fetch.", metavar="REV")
    token: str | None = option(None, "Access token for the Hub. [default: HF_TOKEN]", metavar="TOKEN")
    repack: bool = option(False, "Copy a GGUF file into the store: one block for each expert.")
    mmproj: str | None = option(
        None,
        "The vision tower of a GGUF file: another file, here or in its repository; none for text alone. "
        "[default: an mmproj file beside it]",
        metavar="FILE",
    )
    also: str | None = option(
        None, "Copy the experts to a folder on another disk as well, as `moeinf spread` does.", metavar="DIR"
    )
    force: bool = option(False, "Skip the check of free disk space.")
    keep_source: bool = option(False, "Keep the downloaded files.")  # under sources/ of the store


NO_OPTIONS = PullOptions()
