"""Faults of latent attention: its latents, the two parts of a query and key, the order of rows."""

from __future__ import annotations

from conformance.mutants.mutant import Mutant, knob

_ATTENTION = "attention.py"
_SOURCE = "DeepSeek-AI 2024 (DeepSeek-V2), section 2.1"
_SCORES = "attn.scores attn.context"
_QUERIES = "q = self.q(self.q_norm(self.q_down(x)))"
_LATENT = "latent = self.kv_norm(self.kv_down(x))[:, None]"
_EPS = "RMSNorm(eps=1e-6)"
_JOINED = "q = torch.cat((q_nope, self.q_rope(q_turned, rotation)), dim=-1)"


def _latent(
    name: str, fault: str, old: str, new: str, expected: str, file: str = _ATTENTION
) -> Mutant:
    return knob("deepseek_v3", name, fault, _SOURCE, file, old, new, expected)


LATENT: tuple[Mutant, ...] = (
    _latent(
        "latent-eps-of-the-config",
        "takes rms_norm_eps for the norms of latents, too",
        _EPS,
        'RMSNorm(eps=config.number("rms_norm_eps", 1e-6))',
        "attn.q_norm attn.kv_norm",
        "families/deepseek_v3.py",
    ),
    _latent(
        "latent-of-queries-not-normed",
        "reads queries from a latent that was not normed",
        _QUERIES,
        "q = self.q(self.q_down(x))",
        "attn.q_norm attn.q",
    ),
    _latent(
        "latent-not-normed",
        "keeps latents that were not normed",
        _LATENT,
        "latent = self.kv_down(x)[:, None]",
        "attn.kv_norm cache.latent",
    ),
    _latent(
        "latent-of-the-new-tokens-doubled",
        "norms the latent once more as it is read",
        "kv = self.kv_up(latent[:, 0])",
        "kv = self.kv_up(latent[:, 0] / latent[:, 0].square().mean(-1, keepdim=True).sqrt())",
        "attn.kv_up",
    ),
    _latent(
        "query-turned-part-first",
        "takes the first numbers of a query for the part that is turned",
        "q_nope, q_turned = q.split((self.nope_dim, self.rope_dim), dim=-1)",
        "q_turned, q_nope = q.split((self.rope_dim, self.nope_dim), dim=-1)",
        f"attn.q_rope {_SCORES}",
    ),
    _latent(
        "query-parts-joined-the-other-way",
        "puts the turned part of a query before the other, and that of a key behind it",
        _JOINED,
        "q = torch.cat((self.q_rope(q_turned, rotation), q_nope), dim=-1)",
        _SCORES,
    ),
    _latent(
        "values-before-keys",
        "takes the first rows of each head for values",
        "k_nope, v = kv.split((self.nope_dim, self.v_dim), dim=-1)",
        "v, k_nope = kv.split((self.v_dim, self.nope_dim), dim=-1)",
        _SCORES,
    ),
    _latent(
        "all-keys-before-all-values",
        "takes the first rows for all heads' keys, and the rest for all heads' values",
        "k_nope, v = kv.split((self.nope_dim, self.v_dim), dim=-1)",
        "B, H, S, _ = kv.shape; rows = kv.transpose(1, 2).flatten(2)\n"
        "        k_nope = rows[..., : H * self.nope_dim].view(B, S, H, -1).transpose(1, 2)\n"
        "        v = rows[..., H * self.nope_dim :].view(B, S, H, -1).transpose(1, 2)",
        _SCORES,
    ),
    _latent(
        "key-kept-unturned",
        "keeps the key's part with position as it was before the rotation",
        "cache(step.groups, latent, self.k_rope(k, rotation))",
        "cache(step.groups, latent, (self.k_rope(k, rotation), k)[1])",
        "cache.k_rope",
    ),
    _latent(
        "key-of-the-last-token",
        "gives every key the turned part of the newest",
        "k_turned.expand(-1, k_nope.shape[1], -1, -1)",
        "k_turned[:, :, -1:].expand(-1, k_nope.shape[1], k_turned.shape[2], -1)",
        _SCORES,
    ),
)
