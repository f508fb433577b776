"""Tiny configs of Nemotron 3."""

from tests.support.tiny_models import COMMON

NEMOTRON = {name: value for name, value in COMMON.items() if name != "num_hidden_layers"} | {
    "model_type": "nemotron_h",
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention", "mlp"],
    "head_dim": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 8,
    "time_step_min": 1e-9,  # see docs/reference/families.md
    "intermediate_size": 48,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "layer_norm_epsilon": 1e-5,
}
CONFIGS = {
    "nemotron_h": NEMOTRON,
    "nemotron_h narrow experts, groups, halves alone": NEMOTRON
    | {
        "layers_block_type": ["moe", "linear_attention", "linear_attention", "moe", "full_attention"],
        "moe_latent_size": 32,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": False,
        "use_conv_bias": False,
        "n_groups": 1,
        "conv_kernel": 2,
    },
}
HALVES = CONFIGS["nemotron_h narrow experts, groups, halves alone"]
CONFIGS["nemotron_h biased"] = HALVES | {"use_bias": True, "mlp_bias": True}
