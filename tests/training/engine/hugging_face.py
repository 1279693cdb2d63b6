# SPDX-License-Identifier: Apache-2.0
"""Small models of 28 architectures of Hugging Face, and whether a clipped sum of each is right.

Guarantee  `measure` compares the clipped sum of `PrivateGradients`, in training mode and float32, with a
           plain loop: one row at a time by ordinary autograd, clip, add. Half of the rows are clipped.
Edge cases Rows have different lengths wherever the model takes a mask. Dropout is 0, as two ways of computing
           a gradient would draw it differently.
Source     The classes of transformers and peft, with random weights: nothing is downloaded.
"""

import functools
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import peft
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from sfumato.testing import seeded
from sfumato.training import PrivateGradients
from sfumato.training.data import rows

ROWS, STEPS, WORDS, WIDTH, CLASSES = 6, 7, 40, 16, 3
LENGTHS = torch.tensor([7, 4, 6, 7, 2, 5])  # tokens of each row; the rest is padding
TOLERANCE = 1e-5  # of `apart`: rounding of float32, which norms from products of inputs have more of
FEW = 0.01  # the share of all mass that is added to a parameter's own before errors are compared with it


class Built(NamedTuple):
    """A model, the loss of each row, and a batch."""

    model: nn.Module
    loss: Callable[..., Tensor]
    batch: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What became of one architecture."""

    name: str
    error: float | None  # see `apart`; None where nothing was computed
    engine: str  # the one at work in the end
    clipped: int  # rows whose gradient was longer than the clip norm
    notes: tuple[str, ...]  # warnings, and the exception if there was one

    @property
    def exact(self) -> bool:
        """Whether the sum is the loop's up to rounding."""
        return self.error is not None and self.error <= TOLERANCE

    @property
    def fast(self) -> bool:
        """Whether it is, and the reference did not have to take over."""
        return self.exact and self.engine != "Functional"


class Silent:
    """A noise source that adds nothing."""

    generator = seeded(0)

    def add_(self, sums: Sequence[Tensor], *, stddev: float, step: int) -> None:
        """Add nothing."""


hf.logging.set_verbosity_error()  # else it advises to install kernels


# --- inputs and losses --------------------------------------------------------------------------------------


def draws() -> torch.Generator:
    """Return where inputs are drawn from."""
    return torch.Generator().manual_seed(1)


def words(*, left: bool = False) -> tuple[Tensor, Tensor]:
    """Return token numbers and their mask, padded on the right or on the left."""
    mask = (torch.arange(STEPS) < LENGTHS[:, None]).long()
    mask = mask.flip(1) if left else mask
    return torch.randint(3, WORDS, (ROWS, STEPS), generator=draws()) * mask, mask


def classes() -> Tensor:
    """Return a label for each row."""
    return torch.arange(ROWS) % CLASSES


def pictures(side: int = 16) -> Tensor:
    """Return pictures of three channels."""
    return torch.randn(ROWS, 3, side, side, generator=draws())


def next_word(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Return how badly each row's next words are foretold, padding left out."""
    logits = model(input_ids=ids, attention_mask=mask).logits
    wanted = torch.where(mask[:, 1:] * mask[:, :-1] > 0, ids[:, 1:], -100)
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), wanted, reduction="none").sum(1)


def of_words(model: nn.Module, encoding: Any, labels: Tensor) -> Tensor:
    """Return the loss of classified texts."""
    return F.cross_entropy(model(**encoding).logits, labels, reduction="none")


def of_pictures(model: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of classified pictures."""
    return F.cross_entropy(model(pixel_values=pixels).logits, labels, reduction="none")


def translated(model: nn.Module, ids: Tensor, mask: Tensor, wanted: Tensor) -> Tensor:
    """Return how badly each row's translation is foretold."""
    logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=wanted[:, :-1]).logits
    return F.cross_entropy(logits.transpose(1, 2), wanted[:, 1:], ignore_index=0, reduction="none").sum(1)


def heard(model: nn.Module, sounds: Tensor, wanted: Tensor) -> Tensor:
    """Return how badly each row's transcript is foretold."""
    logits = model(input_features=sounds, decoder_input_ids=wanted[:, :-1]).logits
    return F.cross_entropy(logits.transpose(1, 2), wanted[:, 1:], ignore_index=0, reduction="none").sum(1)


def of_sounds(model: nn.Module, sounds: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of classified sounds of different lengths."""
    return F.cross_entropy(model(sounds, attention_mask=mask).logits, labels, reduction="none")


def matched(model: Any, ids: Tensor, mask: Tensor, pixels: Tensor) -> Tensor:
    """Return how badly each row's text and picture match; those of other rows have no part in it."""
    found = model(input_ids=ids, attention_mask=mask, pixel_values=pixels)
    likeness = (found.text_embeds * found.image_embeds).sum(-1)
    return F.softplus(-model.logit_scale.exp() * likeness)


# --- architectures ------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Built]] = {}
# The names that most configurations give to sizes; the others follow them where they differ.
SMALL = {"vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2}
TEXT = SMALL | {"num_attention_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SHORT = {"max_position_embeddings": 32}
LABELS = {"num_labels": CLASSES}
VISION = {"hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
PATCHES = VISION | DRY | LABELS | {"image_size": 16, "patch_size": 8}


def architecture(name: str) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    """Register a builder."""

    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        BUILDERS[name] = build
        return build

    return register


def causal(name: str, model: str, config: str, *, left: bool = False, **sizes: Any) -> None:
    """Register a language model that foretells the next word."""
    BUILDERS[name] = lambda: Built(
        getattr(hf, model)(getattr(hf, config)(**sizes)), next_word, words(left=left)
    )


def classifier(name: str, model: str, config: str, **sizes: Any) -> None:
    """Register a model that classifies texts; its batch is what tokenizers return."""

    def build() -> Built:
        ids, mask = words()
        encoding = hf.BatchEncoding({"input_ids": ids, "attention_mask": mask})
        return Built(
            getattr(hf, model)(getattr(hf, config)(**sizes, **LABELS)), of_words, (encoding, classes())
        )

    BUILDERS[name] = build


def of_vision(name: str, model: str, config: str, side: int = 16, **sizes: Any) -> None:
    """Register a model that classifies pictures."""
    BUILDERS[name] = lambda: Built(
        getattr(hf, model)(getattr(hf, config)(**sizes)), of_pictures, (pictures(side), classes())
    )


GPT2 = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
causal("GPT-2", "GPT2LMHeadModel", "GPT2Config", **GPT2)
causal("Llama", "LlamaForCausalLM", "LlamaConfig", left=True, **TEXT, **SHORT, num_key_value_heads=1)
causal(
    "Mistral", "MistralForCausalLM", "MistralConfig", **TEXT, **SHORT, num_key_value_heads=1, sliding_window=4
)
causal("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", left=True, **TEXT, **SHORT, num_key_value_heads=1)
causal("OPT", "OPTForCausalLM", "OPTConfig", **TEXT, **SHORT, ffn_dim=24, word_embed_proj_dim=8, dropout=0.0)
causal("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", **TEXT, **SHORT)
causal("Bloom", "BloomForCausalLM", "BloomConfig", vocab_size=WORDS, hidden_size=WIDTH, n_layer=2, n_head=2)
causal("Gemma", "GemmaForCausalLM", "GemmaConfig", **TEXT, **SHORT, num_key_value_heads=1, head_dim=8)
causal("Mamba", "MambaForCausalLM", "MambaConfig", **SMALL, state_size=4, time_step_rank=4)

classifier("BERT", "BertForSequenceClassification", "BertConfig", **TEXT, **SHORT, **DRY)
classifier("RoBERTa", "RobertaForSequenceClassification", "RobertaConfig", **TEXT, **SHORT, **DRY)
DISTIL = {"vocab_size": WORDS, "dim": WIDTH, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "dropout": 0.0}
DISTIL |= {"attention_dropout": 0.0, "seq_classif_dropout": 0.0, "pad_token_id": 0} | SHORT
classifier("DistilBERT", "DistilBertForSequenceClassification", "DistilBertConfig", **DISTIL)
ELECTRA = TEXT | SHORT | DRY | {"embedding_size": 8}
classifier("ELECTRA", "ElectraForSequenceClassification", "ElectraConfig", **ELECTRA)
ALBERT = TEXT | SHORT | DRY | {"embedding_size": 8, "classifier_dropout_prob": 0.0}
classifier("ALBERT", "AlbertForSequenceClassification", "AlbertConfig", **ALBERT)
MODERN = (
    TEXT
    | SHORT
    | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 4, "global_attn_every_n_layers": 2}
)
classifier("ModernBERT", "ModernBertForSequenceClassification", "ModernBertConfig", **MODERN)
DEBERTA = (
    TEXT | SHORT | DRY | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "pooler_dropout": 0.0}
)
classifier("DeBERTa", "DebertaForSequenceClassification", "DebertaConfig", **DEBERTA)

of_vision("ViT", "ViTForImageClassification", "ViTConfig", **PATCHES)
of_vision("DeiT", "DeiTForImageClassification", "DeiTConfig", **PATCHES)
BEIT = PATCHES | {"drop_path_rate": 0.0, "use_relative_position_bias": True}
of_vision("BEiT", "BeitForImageClassification", "BeitConfig", **BEIT)
SWIN = (
    DRY
    | LABELS
    | {"image_size": 16, "patch_size": 2, "embed_dim": 8, "window_size": 4, "drop_path_rate": 0.0}
)
of_vision("Swin", "SwinForImageClassification", "SwinConfig", **SWIN, depths=[2, 2], num_heads=[2, 2])
CONVNEXT = LABELS | {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 2], "drop_path_rate": 0.0}
of_vision("ConvNeXt", "ConvNextForImageClassification", "ConvNextConfig", side=32, **CONVNEXT)


@architecture("T5")
def t5() -> Built:
    """Return a translator with relative positions."""
    sizes = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    config = hf.T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0)
    ids, mask = words()
    return Built(hf.T5ForConditionalGeneration(config), translated, (ids, mask, ids.flip(0)))


def seq2seq(**more: Any) -> dict[str, Any]:
    """Return the sizes of an encoder and a decoder in the names of BART and Whisper."""
    of_each = {"layers": 1, "attention_heads": 2, "ffn_dim": 24, "layerdrop": 0.0}
    sizes = {f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in of_each.items()}
    dry = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return {"vocab_size": WORDS, "d_model": WIDTH} | sizes | dry | special | more


@architecture("BART")
def bart() -> Built:
    """Return a translator with learned positions."""
    config = hf.BartConfig(**seq2seq(), **SHORT, forced_eos_token_id=None)
    ids, mask = words()
    return Built(hf.BartForConditionalGeneration(config), translated, (ids, mask, ids.flip(0)))


@architecture("Whisper")
def whisper() -> Built:
    """Return a transcriber; its sounds all have one length."""
    config = hf.WhisperConfig(**seq2seq(num_mel_bins=8, max_source_positions=10, max_target_positions=16))
    sounds = torch.randn(ROWS, 8, 20, generator=draws())
    return Built(hf.WhisperForConditionalGeneration(config), heard, (sounds, words()[0]))


@architecture("Wav2Vec2")
def wav2vec2() -> Built:
    """Return a classifier of sounds of different lengths."""
    convolutions = {"conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (8, 3), "conv_bias": True}
    positions = {
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "feat_extract_norm": "layer",
    }
    dry = dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout", "layerdrop"), 0.0)
    dry |= dict.fromkeys(("feat_proj_dropout", "final_dropout", "mask_time_prob"), 0.0)
    config = hf.Wav2Vec2Config(**VISION, **LABELS, **convolutions, **positions, **dry, classifier_proj_size=8)
    mask = (torch.arange(160) < LENGTHS[:, None] * 160 // STEPS).long()
    sounds = torch.randn(ROWS, 160, generator=draws()) * mask
    return Built(hf.Wav2Vec2ForSequenceClassification(config), of_sounds, (sounds, mask, classes()))


@architecture("CLIP")
def clip() -> Built:
    """Return a model of texts and pictures."""
    text, vision = TEXT | SHORT, VISION | {"image_size": 16, "patch_size": 8}
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    return Built(hf.CLIPModel(config), matched, (*words(), pictures()))


def adapted(**more: Any) -> Built:
    """Return a language model of which only adapters of low rank are trained."""
    base = hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, **SHORT))
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0, **more)
    model = peft.get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # else zero, and with it the gradients of all that comes before
            nn.init.normal_(parameter, std=0.1)
    return Built(model, next_word, words())


BUILDERS["PEFT LoRA"] = adapted
BUILDERS["PEFT DoRA"] = functools.partial(adapted, use_dora=True)


# --- measuring ----------------------------------------------------------------------------------------------


def build(name: str) -> Built:
    """Return an architecture in training mode, with the same weights at each call."""
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a library says about its own configurations
        torch.manual_seed(0)
        built = BUILDERS[name]()
    built.model.train()
    return built


def loop(built: Built) -> list[dict[str, Tensor]]:
    """Return each row's gradient, by ordinary autograd on that row alone."""
    trained = {name: p for name, p in built.model.named_parameters() if p.requires_grad}
    found = []
    for i in range(ROWS):
        losses = built.loss(built.model, *rows.take(built.batch, slice(i, i + 1)))
        grads = torch.autograd.grad(
            losses.sum(), list(trained.values()), allow_unused=True, materialize_grads=True
        )
        found.append(dict(zip(trained, grads, strict=True)))
    return found


def norm(gradient: dict[str, Tensor]) -> float:
    """Return the norm of a whole gradient."""
    return float(torch.stack([g.double().square().sum() for g in gradient.values()]).sum().sqrt())


def apart(found: dict[str, Tensor], each: list[dict[str, Tensor]], clip_norm: float) -> float:
    """Return the largest error of a parameter's sum, relative to the mass that can cancel in it.

    That mass is the norms of its clipped gradients, added over rows, and a hundredth of those of all
    parameters: the gradient of some parameters, as the bias of attention keys, is zero but for rounding.
    """
    factors = [min(1.0, clip_norm / norm(gradient)) for gradient in each]
    clipped = [{n: g.double() * f for n, g in row.items()} for row, f in zip(each, factors, strict=True)]
    everything = sum(norm(row) for row in clipped)
    errors = []
    for name, total in found.items():
        mass = sum(float(row[name].norm()) for row in clipped) + FEW * everything
        errors.append(float((total.double() - sum(row[name] for row in clipped)).norm()) / mass)
    return max(errors)


def private_gradients(built: Built, clip_norm: float = 1.0) -> PrivateGradients:
    """Return what a user would make, but without noise."""
    options = {"noise_multiplier": 1.0, "expected_batch_size": 1.0, "noise": Silent()}
    return PrivateGradients(built.model, built.loss, clip_norm=clip_norm, **options)


def measure(name: str) -> Found:
    """Return how far the clipped sum of an architecture is from the loop's, and by which engine."""
    built = build(name)
    each = loop(built)
    clip_norm = statistics.median(norm(row) for row in each)
    error, engine, reason = None, "none", []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            private = private_gradients(built, clip_norm)
            private.backward(*built.batch)
            error, engine = apart(_sums(built.model), each, clip_norm), private.engine
        except Exception as problem:  # whatever it is, it is what this table is about
            reason = [f"{type(problem).__name__}: {problem}"]
    notes = dict.fromkeys([*(str(warning.message) for warning in caught), *reason])
    clipped = sum(norm(row) > clip_norm for row in each)
    return Found(name=name, error=error, engine=engine, clipped=clipped, notes=tuple(notes))


def _sums(model: nn.Module) -> dict[str, Tensor]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in trained.items()}
