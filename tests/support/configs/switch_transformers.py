"""Tiny configs of Switch Transformers."""

SWITCH = {
    "model_type": "switch_transformers",
    "vocab_size": 97,
    "d_model": 64,
    "d_kv": 24,
    "d_ff": 96,
    "num_layers": 4,
    "num_decoder_layers": 4,
    "num_sparse_encoder_layers": 2,
    "num_sparse_decoder_layers": 2,
    "num_heads": 4,
    "num_experts": 8,
    "expert_capacity": 64,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
SEQ2SEQ_CONFIGS = {
    "switch": SWITCH,
    "switch with a head and embeddings of their own": SWITCH | {"tie_word_embeddings": False},
    "switch overflowing, biased, other depths": SWITCH
    | {
        "expert_capacity": 2,
        "num_decoder_layers": 3,
        "num_sparse_decoder_layers": 1,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "router_bias": True,
    },
}
