#!/usr/bin/env python3
"""Exports architectures that people serve from PyTorch, with random weights: models that nobody had in view.

    tools/export_models.py --out FOLDER [--only NAME,...] [--batch N] [--open]

FOLDER gets NAME.onnx and models.json, as tools/compare_models.py and ../shared/bench/peers.py read it. With --open the
lengths of sentences, the sizes of pictures and the past of decoders are open extents, for tools/compare_shapes.py; only
architectures that allow it are exported. What is there already stays. Needs the Python packages torch, timm,
transformers, diffusers, onnx and numpy (tried with Debian's torch 1.13, timm 0.9.16, transformers 4.38, diffusers 0.27).
Weights are seeded by the name; BatchNormalization gets statistics that do something. Exit status: 0 when all were
exported, else 1.
"""
import argparse
import functools
import pathlib
import sys
import warnings
import zlib

import onnx
import torch

from model_folder import make_missing

OPSET = 16
PICTURE = {"pixel_values": (1, 3, 224, 224)}
TOKENS = {"input_ids": 128, "attention_mask": 128}  # of sequences: their length

# By timm's names, and the side of their picture.
TIMM = {
    224: (
        "beit_base_patch16_224 coat_lite_tiny convnext_tiny convnextv2_nano cspdarknet53 davit_tiny deit_small_patch16_224 "
        "dla34 dpn68 edgenext_small efficientformer_l1 efficientnet_b0 efficientvit_b0 efficientvit_m2 fastvit_t8 "
        "focalnet_tiny_srf ghostnet_100 gmlp_s16_224 hrnet_w18_small inception_next_tiny levit_128s mixer_b16_224 "
        "mobilenetv3_large_100 mobileone_s1 poolformer_s12 pvt_v2_b1 regnetx_032 regnety_008 repvgg_a0 res2net50_26w_4s "
        "resnest14d resnet18 resnext50_32x4d rexnet_100 seresnet50 swin_tiny_patch4_window7_224 tresnet_m "
        "twins_svt_small xcit_tiny_12_p16_224"
    ),
    256: "botnet26t_256 gcresnet33ts mobilevit_s mobilevitv2_100",
    299: "inception_v4 xception41",
}

SMALL = {"num_hidden_layers": 4}
SEQUENCE = {"vocab_size": 32000, "use_cache": False}
# Model, configuration, what it changes, inputs.
TRANSFORMERS = {
    "albert": ("AlbertModel", "AlbertConfig", {"hidden_size": 768, "num_attention_heads": 12}, TOKENS),
    "bart": ("BartModel", "BartConfig",
             {**SEQUENCE, "encoder_layers": 3, "decoder_layers": 3, "attn_implementation": "eager"},
             {"input_ids": 64, "decoder_input_ids": 16}),
    "bloom": ("BloomForCausalLM", "BloomConfig", {**SEQUENCE, "hidden_size": 512, "n_layer": 4}, {"input_ids": 64}),
    "convbert": ("ConvBertModel", "ConvBertConfig", SMALL, TOKENS),
    "deberta_v2": ("DebertaV2Model", "DebertaV2Config",
                   {**SMALL, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072,
                    "relative_attention": True, "position_buckets": 256, "pos_att_type": ["p2c", "c2p"]}, TOKENS),
    "distilbert": ("DistilBertModel", "DistilBertConfig", {}, TOKENS),
    "electra": ("ElectraModel", "ElectraConfig", {}, TOKENS),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**SEQUENCE, "n_layer": 4}, {"input_ids": 64}),
    "llama": ("LlamaForCausalLM", "LlamaConfig",
              {**SEQUENCE, **SMALL, "hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8,
               "num_key_value_heads": 4}, {"input_ids": 64}),
    "mobilebert": ("MobileBertModel", "MobileBertConfig", SMALL, TOKENS),
    "segformer": ("SegformerForSemanticSegmentation", "SegformerConfig", {}, PICTURE),
    "squeezebert": ("SqueezeBertModel", "SqueezeBertConfig", {**SMALL, "embedding_size": 768}, TOKENS),
    "swin2sr": ("Swin2SRForImageSuperResolution", "Swin2SRConfig",
                {"embed_dim": 60, "depths": [2, 2], "num_heads": [6, 6], "upscale": 2}, {"pixel_values": (1, 3, 64, 64)}),
    "t5_encoder": ("T5EncoderModel", "T5Config", {"num_layers": 4}, {"input_ids": 128}),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", SMALL, {"input_values": (1, 32000)}),
}

# One token behind 500: model, configuration, what it changes.
PAST = 500
SHARED = {"vocab_size": 4000, "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12,
          "num_key_value_heads": 4, "num_hidden_layers": 4}
DECODERS = {
    "gemma_token": ("GemmaForCausalLM", "GemmaConfig", {**SHARED, "num_key_value_heads": 1, "head_dim": 64}),
    "gpt2_token": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 4000, "n_layer": 4}),
    "llama_token": ("LlamaForCausalLM", "LlamaConfig", SHARED),
    "mistral_token": ("MistralForCausalLM", "MistralConfig", SHARED),
    "phi_token": ("PhiForCausalLM", "PhiConfig", {**SHARED, "num_key_value_heads": 12}),
    "qwen2_token": ("Qwen2ForCausalLM", "Qwen2Config", SHARED),
}

# With --open: names of the open axes by input, and the ranges of `lathe bench --dim`.
PICTURES = {2: "height", 3: "width"}, ["height=128..416..8", "width=416..128..8"]
SENTENCES = {1: "length"}, ["length=8..128..3"]
OPEN = {
    **{name: {"x": PICTURES} for name in ("efficientnet_b0", "mobilenetv3_large_100", "repvgg_a0", "resnet18")},
    **{name: {"input_ids": SENTENCES, "attention_mask": ({1: "length"}, [])}
       for name in ("albert", "convbert", "deberta_v2", "distilbert", "electra", "gpt2", "mobilebert", "squeezebert",
                    "t5_encoder")},
    "bart": {"input_ids": ({1: "length"}, ["length=8..64..4"]), "decoder_input_ids": ({1: "decoded"}, ["decoded=2..16"])},
    "segformer": {"pixel_values": PICTURES},
    "wav2vec2": {"input_values": ({1: "samples"}, ["samples=8000..32000..800"])},
}


class ByPosition(torch.nn.Module):
    """Takes inputs in their order and gives the first output, which is what the exporter can name."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        return self.model(**dict(zip(self.names, inputs)), return_dict=False)[0]


class Decoder(torch.nn.Module):
    """A token and its cache, keys and values of each layer in turn; gives the scores and the longer cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, *cache):
        past = tuple(zip(cache[::2], cache[1::2]))
        made = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=past, use_cache=True)
        return (made.logits, *(tensor for layer in made.past_key_values for tensor in layer))


def timm_model(name, side):
    import timm

    return timm.create_model(name, exportable=True), {"x": torch.randn(1, 3, side, side)}


def transformers_model(model, config, changes, shapes):
    import transformers

    inputs = {}
    for name, shape in shapes.items():
        if name == "attention_mask":
            inputs[name] = torch.ones(1, shape, dtype=torch.long)
        else:
            inputs[name] = torch.randint(1, 1000, (1, shape)) if isinstance(shape, int) else torch.randn(*shape)
    made = getattr(transformers, model)(getattr(transformers, config)(**changes))
    return ByPosition(made, list(inputs)), inputs


def decoder_model(model, config, changes):
    import transformers

    made = getattr(transformers, config)(**changes)
    heads = getattr(made, "num_key_value_heads", None) or made.num_attention_heads
    size = getattr(made, "head_dim", None) or made.hidden_size // made.num_attention_heads
    inputs = {"input_ids": torch.randint(1, 1000, (1, 1)), "attention_mask": torch.ones(1, PAST + 1, dtype=torch.long)}
    for layer in range(made.num_hidden_layers):
        inputs[f"past_key_{layer}"] = torch.randn(1, heads, PAST, size)
        inputs[f"past_value_{layer}"] = torch.randn(1, heads, PAST, size)
    return Decoder(getattr(transformers, model)(made)), inputs


def diffusion_model():
    import diffusers
    from diffusers.models.attention_processor import AttnProcessor

    cross, plain = "CrossAttn{}Block2D", "{}Block2D"
    made = diffusers.UNet2DConditionModel(
        sample_size=32, block_out_channels=(64, 128, 256), cross_attention_dim=256, attention_head_dim=8,
        down_block_types=[kind.format("Down") for kind in (cross, cross, plain)],
        up_block_types=[kind.format("Up") for kind in (plain, cross, cross)])
    made.set_attn_processor(AttnProcessor())  # in parts that every exporter knows
    inputs = {"sample": torch.randn(1, 4, 32, 32), "timestep": torch.tensor([10]),
              "encoder_hidden_states": torch.randn(1, 77, 256)}
    return ByPosition(made, list(inputs)), inputs


def all_models():
    made = {name: (timm_model, name, side) for side, names in TIMM.items() for name in names.split()}
    made.update({name: (transformers_model, *how) for name, how in TRANSFORMERS.items()})
    made.update({name: (decoder_model, *how) for name, how in DECODERS.items()})
    made["diffusion_unet"] = (diffusion_model,)
    return made


def described(tensor):
    if tensor.is_floating_point():
        gen = "normal"
    else:
        gen = f"value:{tensor.flatten()[0]}" if bool((tensor == tensor.flatten()[0]).all()) else f"tokens:{tensor.max()}"
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "gen": gen}


def open_axes(name, inputs):
    """{input: {axis: symbol}}, the ranges, and whether their shapes come in a mixed order."""
    if name in DECODERS:
        axes = {key: {2: "past"} for key in inputs if key.startswith("past")}
        return {**axes, "attention_mask": {1: "total"}}, ["past=16..135", "total=17..136"], False
    chosen = {key: value for key, value in OPEN[name].items() if key in inputs}
    return {key: axes for key, (axes, _) in chosen.items()}, [dim for _, dims in chosen.values() for dim in dims], True


def export(name, how, batch, is_open, path):
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    model, inputs = how[0](*how[1:])
    inputs = {key: torch.cat([value] * batch) for key, value in inputs.items()}
    model.eval()
    for module in model.modules():
        if getattr(module, "running_var", None) is not None:
            module.running_var.uniform_(0.5, 1.5)
            module.running_mean.normal_(0, 0.1)
    axes, dims, shuffle = open_axes(name, inputs) if is_open else ({}, [], False)
    with torch.no_grad():
        torch.onnx.export(model, tuple(inputs.values()), str(path), opset_version=OPSET, input_names=list(inputs),
                          dynamic_axes=axes)
    graph = onnx.load(path).graph
    names = [value.name for value in graph.input]  # the exporter drops what is not read
    entry = {"name": name, "split": "dev", "file": path.name, "sha256": f"{name} {seed}", "gmacs": 0, "kind": "fp32",
             "inputs": {key: described(value) for key, value in inputs.items() if key in names}}
    return {**entry, "dims": dims, "shuffle": shuffle} if is_open else entry


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--batch", type=int, default=1, help="pictures, sentences or sequences in a run")
    parser.add_argument("--open", action="store_true")
    options = parser.parse_args()
    models = {name: how for name, how in all_models().items() if not options.open or name in OPEN or name in DECODERS}
    wanted = options.only.split(",") if options.only else list(models)
    if unknown := [name for name in wanted if name not in models]:
        parser.error(f"no such model: {', '.join(unknown)}")
    warnings.filterwarnings("ignore")
    exports = {name: functools.partial(export, name, models[name], options.batch, options.open) for name in wanted}
    return make_missing(options.out, exports)


if __name__ == "__main__":
    sys.exit(main())
