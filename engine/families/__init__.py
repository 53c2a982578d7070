"""The architectures: one small file each, looked up by the name in config.json or in a GGUF file."""

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelFileError
from engine.families import (
    deepseek_v3,
    gemma,
    gemma2,
    gemma3_text,
    gpt2,
    gpt_oss,
    granite,
    llama,
    mistral,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    smollm3,
)
from engine.families.config import HARMLESS, ONLY, Config
from engine.families.family import Family
from engine.spec import ModelSpec

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (
        gpt2,
        llama,
        mistral,
        qwen2,
        qwen3,
        gemma,
        gemma2,
        gemma3_text,
        phi3,
        olmo2,
        smollm3,
        granite,
        mixtral,
        qwen3_moe,
        gpt_oss,
        deepseek_v3,
    )
}
# What else the config of a multimodal model holds: its other parts, and how they are joined.
_OTHER_PARTS = frozenset(
    """boi_token_index eoi_token_index image_seq_length image_token_id image_token_index
    mm_tokens_per_image multimodal_projector_bias projector_hidden_act spatial_merge_size
    tie_word_embeddings vision_config vision_feature_layer""".split()
)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that runs a config.json, by its `model_type` and `architectures`."""
    name = config.get("model_type")
    architectures = config.get("architectures") or []
    known = ", ".join(FAMILIES)
    if not isinstance(name, str):
        raise ModelFileError(f"config.json: model_type must be one of {known}, got {name!r:.60}")
    if not isinstance(architectures, list):
        raise ModelFileError(
            f"config.json: architectures must be a list, got {architectures!r:.60}"
        )
    family = FAMILIES.get(name) or _by_text_part(name, config)
    if family is None:
        raise ModelFileError(f"architecture {name!r:.60} is not supported (supported: {known})")
    architecture = family.multimodal.get(name, family.architecture)
    if architectures and architecture not in architectures:
        raise ModelFileError(
            f"a {name} model of class {', '.join(map(str, architectures))} is not supported; "
            f"the engine runs {architecture}"
        )
    return family


def _by_text_part(name: str, config: Mapping[str, Any]) -> Family | None:
    families = [family for family in FAMILIES.values() if name in family.multimodal]
    if not families:
        return None
    text = config.get("text_config")
    kind = text.get("model_type", families[0].name) if isinstance(text, Mapping) else None
    for family in families:
        if family.name == kind:
            return family
    raise ModelFileError(
        f"config.json of a {name} model: its text_config must be a table of model_type "
        f"{', '.join(family.name for family in families)}, got {kind!r:.60}"
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of the text model: itself, or its `text_config`.

    Whether the head is tied is said outside of that, and true where nothing is.
    """
    name = config.get("model_type")
    if name in FAMILIES or not isinstance(config.get("text_config"), Mapping):
        return config
    return {**config["text_config"], "tie_word_embeddings": config.get("tie_word_embeddings", True)}


def read_spec(config: Mapping[str, Any]) -> tuple[Family, ModelSpec]:
    """config.json to the model's shape; every key is read, known to be harmless, or an error."""
    family = family_of(config)
    if config["model_type"] != family.name:
        outer = Config(config, config["model_type"])
        outer.finish(HARMLESS | _OTHER_PARTS | {"text_config"})
    reader = Config(text_config(config), family.name)
    for key, only in ONLY.items():
        reader.must_be(key, only)
    spec = family.spec(reader)
    reader.finish(HARMLESS | family.ignored)
    return family, spec
