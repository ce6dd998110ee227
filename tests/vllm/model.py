"""Writes a Llama of two layers with random weights: tokens are bytes, nobody needs a tokenizer.

usage: model.py FOLDER

Weights come from a seed and are large enough that the likeliest token is so by a margin, which float32 in another order of
sums does not turn.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, WIDTH, VOCABULARY = 2, 128, 4, 2, 32, 256, 256
DEVIATION = 0.3


def weights():
    torch.manual_seed(7)

    def random(*shape):
        return torch.randn(*shape) * DEVIATION

    tensors = {
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN), "lm_head.weight": random(VOCABULARY, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
    }
    for i in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
            "mlp.gate_proj": (WIDTH, HIDDEN), "mlp.up_proj": (WIDTH, HIDDEN), "mlp.down_proj": (HIDDEN, WIDTH),
        }
        tensors |= {f"model.layers.{i}.{name}.weight": random(*shape) for name, shape in shapes.items()}
        tensors |= {f"model.layers.{i}.{name}.weight": torch.ones(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")}
    return tensors


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
    "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD, "max_position_embeddings": 32768, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32",
}

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
save_file(weights(), folder / "model.safetensors", {"format": "pt"})
(folder / "config.json").write_text(json.dumps(CONFIG, indent=1))
