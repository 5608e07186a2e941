"""Models of transformers' that nobody chose for traces have one or none; their answers stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from soundness.answers import ADOPTED, difference, reasons
from soundness.restarts import Pair

from support.torch_versions import needs_traces

pytestmark = [
    *(pytest.mark.compile, pytest.mark.proof, needs_traces),
    pytest.mark.xdist_group("architectures"),
]

ADOPT = (
    *("albert", "bert", "clip_vision_model", "cohere", "convnext", "deberta-v2", "dinov2", "distilbert"),
    *("electra", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "gptj", "granite", "llama"),
    *("mistral", "modernbert", "mpnet", "olmo2", "opt", "phi", "phi3", "qwen2", "qwen3", "resnet", "roberta"),
    *("stablelm", "starcoder2", "swin", "vit"),
)
REFUSED = ("bart", "bloom", "mamba", "mixtral", "t5", "wav2vec2")
SOURCE = """
import torch
from transformers import AutoModel, CONFIG_MAPPING
NAME = {name!r}
SMALL = {{
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_key_value_heads", "num_local_experts"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "ffn_dim", "d_ff"), 128),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings", "n_positions"), 128),
    **dict.fromkeys(("d_kv", "head_dim", "rotary_dim", "num_conv_pos_embeddings"), 16),
    **dict(vocab_size=120, image_size=32, patch_size=8, sliding_window=32, state_size=8),
    **dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, num_conv_pos_embedding_groups=4),
}}
OF_ONE = {{
    "convnext": dict(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, patch_size=4),
    "resnet": dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]),
    "swin": dict(patch_size=4, window_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 2]),
}}
kind = CONFIG_MAPPING[NAME]
known = kind()
given = OF_ONE.get(NAME) or {{
    name: value for name, value in SMALL.items()
    if hasattr(known, name) and not isinstance(getattr(known, name), (list, tuple))
}}
if NAME == "gpt_neo":
    given["attention_types"] = [[["global"], 2]]
elif NAME == "bart":
    del given["num_hidden_layers"]
elif NAME == "wav2vec2":
    given |= dict(conv_dim=[16, 16], conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2)
    given |= dict(mask_time_prob=0.0)
torch.manual_seed(0)
model = AutoModel.from_config(kind(**given)).eval()
tokens = torch.randint(3, 100, (2, 16))
if NAME in ("clip_vision_model", "convnext", "dinov2", "resnet", "swin", "vit"):
    inputs = dict(pixel_values=torch.randn(2, 3, 32, 32))
elif NAME == "wav2vec2":
    inputs = dict(input_values=torch.randn(1, 800))
elif NAME == "t5":
    inputs = dict(input_ids=tokens, decoder_input_ids=tokens)
else:
    inputs = dict(input_ids=tokens)
def results(compile):
    with torch.no_grad():
        return [compile(model)(**inputs)[0]]
"""


@pytest.mark.parametrize("name", [*ADOPT, *REFUSED])
def test_an_architecture_answers_the_same_and_has_a_trace_where_the_docs_say_so(
    name: str, both: Pair, tmp_path: Path
) -> None:
    first, second = both
    source = SOURCE.format(name=name)

    before = first.run(source, tmp_path / "kernels")
    again = second.run(source, tmp_path / "kernels")
    eager = first.run(source, tmp_path / "eager", eager=True)

    assert not difference(before, eager)
    assert not difference(again, before)
    assert all(reason.startswith(ADOPTED) is (name in ADOPT) for reason in reasons(again))
