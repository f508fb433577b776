"""Tiny configs of GLM-5, of which some layers share what others have chosen."""

from tests.support.configs.deepseek_v32 import DEEPSEEK_V32

CONFIGS = {
    "glm_moe_dsa": DEEPSEEK_V32
    | {"model_type": "glm_moe_dsa", "n_group": 1, "topk_group": 1, "indexer_types": ["full", "shared", "full"]}
}
