"""Which models may read packed rows, and what the others are told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import (
    DeepseekV32Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GptOssConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3NextConfig,
)

from rllib_dapo.errors import SettingError
from rllib_dapo.model.packable import check_packable


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (MistralConfig(sliding_window=63), "sliding_window=63, shorter .* 64 tokens"),
        (Gemma3TextConfig(sliding_window=63), "sliding_window=63"),
        (Gemma2Config(), "softcap"),
        (GptOssConfig(), "attention sinks"),
        (DeepseekV32Config(), "layers of type indexed_attention"),
        (MambaConfig(), "recurrent"),
        (Qwen3NextConfig(), "recurrent"),
        (Qwen2Config(layer_types=["linear_attention"] * 32), "layers of type linear_attention"),
        (Gemma3TextConfig(use_bidirectional_attention=True), "not causal"),
        (SimpleNamespace(model_type="own", get_text_config=lambda: None), "is not a causal"),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_models_that_cannot_read_packed_rows_are_refused(config, reason):
    with pytest.raises(SettingError, match=rf"^packing=True: .*{reason}.*set packing: false$") as e:
        check_packable(config, longest=64)
    assert e.value.setting == "packing"


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(sliding_window=64),
        MistralConfig(sliding_window=None),
        Gemma3TextConfig(sliding_window=64),
        Qwen2Config(sliding_window=4, use_sliding_window=False),
        Qwen2Config(sliding_window=4, use_sliding_window=True, max_window_layers=99),
        GPTNeoXConfig(),
    ],
)
def test_models_that_can_read_packed_rows_are_accepted(config):
    check_packable(config, longest=64)
