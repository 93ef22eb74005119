"""Checkpoints of real architectures, with random weights and a real tokenizer, in a few hundred
kilobytes. Made by transformers itself; every test of the export starts from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 320
TEXT = (
    "The quick brown fox jumps over the lazy dog. Layers are cut and joined again; "
    "what a stage holds follows its range. Ein kurzer Satz mit Umlauten: Größe, Übung. "
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": None,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "qwen3_moe": (
        "Qwen3Moe",
        {**EXPERTS, "moe_intermediate_size": 32, "mlp_only_layers": [1, 3]},
    ),
    "mistral": ("Mistral", {"sliding_window": 8}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi3": ("Phi3", {"sliding_window": None}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 4.0,
        },
    ),
    "gpt_oss": (
        "GptOss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 3}),
    "gemma": ("Gemma", {}),
    "gemma2": ("Gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    "gemma3_text": (
        "Gemma3",
        {"sliding_window": 8, "query_pre_attn_scalar": 16, "sliding_window_pattern": 3},
    ),
}
"""Class prefix in transformers, and what differs from SMALL."""


def make_checkpoint(
    folder: Path, architecture: str, dtype: str = "float16", seed: int = 0, **changes: Any
) -> Path:
    """A checkpoint folder with config, weights and tokenizer. `changes` override the sizes."""
    prefix, own = ARCHITECTURES[architecture]
    name = "Gemma3Text" if architecture == "gemma3_text" else prefix
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **own, **changes})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    with torch.no_grad():
        for weight in model.parameters():  # norms of ones and biases of zeros would hide mistakes
            weight.add_(torch.randn_like(weight) * 0.05)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_tokenizer() -> Any:
    """A byte-level BPE as SmolLM2 and Qwen have, trained on TEXT."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special[0],
        eos_token=special[2],
        additional_special_tokens=special[1:2],
        chat_template=TEMPLATE,
    )
