"""The architectures: one small file each, looked up by the name in config.json or in a GGUF file."""

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelFileError
from engine.families import llama
from engine.families.config import HARMLESS, Config
from engine.families.family import Family
from engine.spec import ModelSpec

FAMILIES: dict[str, Family] = {family.name: family for family in (llama.FAMILY,)}


def family_of(config: Mapping[str, Any]) -> Family:
    """The family a config.json names, by `model_type` and `architectures`."""
    name = config.get("model_type")
    architectures = config.get("architectures") or []
    known = ", ".join(FAMILIES)
    if not isinstance(name, str):
        raise ModelFileError(f"config.json: model_type must be one of {known}, got {name!r:.60}")
    if not isinstance(architectures, list):
        raise ModelFileError(
            f"config.json: architectures must be a list, got {architectures!r:.60}"
        )
    if name not in FAMILIES:
        raise ModelFileError(f"architecture {name!r:.60} is not supported (supported: {known})")
    family = FAMILIES[name]
    if architectures and family.architecture not in architectures:
        raise ModelFileError(
            f"a {name} model of class {', '.join(map(str, architectures))} is not supported; "
            f"the engine runs {family.architecture}"
        )
    return family


def read_spec(config: Mapping[str, Any]) -> tuple[Family, ModelSpec]:
    """config.json to the model's shape; every key is read, known to be harmless, or an error."""
    family = family_of(config)
    reader = Config(config, family.name)
    spec = family.spec(reader)
    reader.finish(HARMLESS | family.ignored)
    return family, spec
