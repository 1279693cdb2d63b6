# SPDX-License-Identifier: Apache-2.0
"""Five architectures with random weights, and rows for each: nothing is downloaded."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import peft
import torch
import transformers as hf
from torch import nn

WORDS, LENGTH, CLASSES = 40, 7, 3
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Size:
    """How large the models are."""

    width: int = 16
    layers: int = 1
    heads: int = 2
    length: int = LENGTH
    words: int = WORDS
    side: int = 16  # of pictures


SMALL = Size()


def gpt2(size: Size = SMALL) -> nn.Module:
    """Return a language model."""
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {"n_embd": size.width, "n_layer": size.layers, "n_head": size.heads}
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=size.words, n_positions=4 * size.length, **sizes, **special)
    )


def text(size: Size) -> dict[str, Any]:
    """Return the sizes of a model of text, by the names that most have."""
    return {
        "vocab_size": size.words,
        "hidden_size": size.width,
        "intermediate_size": 2 * size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "max_position_embeddings": 4 * size.length,
        "pad_token_id": 0,
    }


def bert(size: Size = SMALL) -> nn.Module:
    """Return a classifier of texts."""
    return hf.BertForSequenceClassification(hf.BertConfig(**text(size), num_labels=CLASSES))


def t5(size: Size = SMALL) -> nn.Module:
    """Return a translator."""
    sizes = {"d_model": size.width, "d_kv": size.width // size.heads, "d_ff": 2 * size.width}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0}
    return hf.T5ForConditionalGeneration(
        hf.T5Config(vocab_size=size.words, num_layers=size.layers, num_heads=size.heads, **sizes, **special)
    )


def vit(size: Size = SMALL) -> nn.Module:
    """Return a classifier of pictures."""
    sizes = {name: value for name, value in text(size).items() if name.startswith(("hidden", "inter", "num"))}
    config = hf.ViTConfig(**sizes, image_size=size.side, patch_size=8, num_labels=CLASSES)
    return hf.ViTForImageClassification(config)


def llama(size: Size = SMALL) -> nn.Module:
    """Return a language model of which only adapters of low rank are trained."""
    base = hf.LlamaForCausalLM(hf.LlamaConfig(**text(size)))
    found = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    for name, parameter in found.named_parameters():
        if "lora_B" in name:  # else zero, and with it the gradients of all that comes before
            nn.init.normal_(parameter, std=0.1)
    return found


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "GPT-2": gpt2,
    "BERT": bert,
    "T5": t5,
    "ViT": vit,
    "Llama, LoRA": llama,
}


def model(name: str, size: Size = SMALL) -> nn.Module:
    """Return a model, with the same weights at each call."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a library says about its own configurations
        torch.manual_seed(0)
        return MODELS[name](size).train()


def rows(name: str, count: int, size: Size = SMALL, seed: int = 1) -> Rows:
    """Return examples as data sets of Hugging Face give them: dicts of lists and numbers."""
    draws = torch.Generator().manual_seed(seed)

    def tokens() -> list[int]:
        return torch.randint(3, size.words, (size.length,), generator=draws).tolist()

    def one(number: int) -> dict[str, Any]:
        if name == "ViT":
            pixels = torch.randn(3, size.side, size.side, generator=draws)
            return {"pixel_values": pixels, "labels": number % CLASSES}
        ids = tokens()
        labels: Any = {"BERT": number % CLASSES, "T5": ids[::-1]}.get(name, ids)
        return {"input_ids": ids, "attention_mask": [1] * size.length, "labels": labels}

    return [one(number) for number in range(count)]


def tensors(examples: Rows) -> dict[str, torch.Tensor]:
    """Return the same rows as tensors, for our own trainer."""
    return {name: torch.stack([torch.as_tensor(row[name]) for row in examples]) for name in examples[0]}


def own_loss(model: nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the loss of one row, as docs/training.md says it for models of Hugging Face."""
    return model(**batch).loss.reshape(1)
