# SPDX-License-Identifier: Apache-2.0
"""A tokenizer of a few words, made here: nothing is downloaded."""

import transformers as hf
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = 37


def tokenizer() -> hf.PreTrainedTokenizerFast:
    """Return a tokenizer that knows the words w0, w1, ..."""
    words = {"[PAD]": 0, "[MASK]": 1, "[UNK]": 2} | {f"w{i}": i + 3 for i in range(WORDS)}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=inner, **special)
