"""What a decoder is made of, as plain data. No torch here: the engine core reads specs too.

A :class:`ModelSpec` holds everything that the one decoder (:mod:`paceline.models.decoder`) needs to know. A new
architecture is a mapping from its configuration to a spec (:mod:`paceline.models.architectures`).
"""

from __future__ import annotations

import math

import msgspec

from paceline.errors import ModelError

# Far above any real model; they keep a hostile file from asking for an absurd amount of work.
_LIMITS = {
    "num_layers": 4096,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_heads": 1 << 14,
    "num_kv_heads": 1 << 14,
    "head_dim": 1 << 14,
    "vocab_size": 1 << 26,
    "max_position": 1 << 26,
}


class RopeSpec(msgspec.Struct, frozen=True):
    """Rotary position embedding: which dimensions turn, how fast, and how long contexts are squeezed.

    `scaling` is one of ``none``, ``linear``, ``dynamic``, ``llama3``, ``yarn``, ``factors``; each reads only its own
    fields. ``factors`` divides each frequency by a number that the model file holds.
    """

    theta: float
    rotary_dim: int
    scaling: str = "none"
    factor: float = 1.0
    original_max_position: int = 0  # llama3, yarn: the context length before it was stretched
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the bounds of its ramp to whole dimensions
    attention_factor: float = 1.0  # yarn: multiplies cos and sin
    factors: tuple[float, ...] = ()


class ModelSpec(msgspec.Struct, frozen=True):
    """A decoder-only transformer. Sizes count elements.

    Raises:
        ModelError: from :meth:`checked`, when the sizes contradict each other.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_eps: float
    rope: RopeSpec
    max_position: int
    tie_embeddings: bool = False
    attention_bias: bool = False  # on q, k and v
    output_bias: bool = False  # on the attention's output projection
    mlp_bias: bool = False

    @property
    def q_size(self) -> int:
        """Rows of the query projection: ``num_heads · head_dim``."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Rows of the key projection, and of the value projection: ``num_kv_heads · head_dim``."""
        return self.num_kv_heads * self.head_dim

    def checked(self) -> ModelSpec:
        """This spec, if its sizes can belong together."""
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise ModelError(f"the model's {name} is {value}; it must lie between 1 and {limit}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} key/value heads evenly"
            )
        if not 0.0 <= self.rms_eps < 1.0:
            raise ModelError(f"the model's norm epsilon is {self.rms_eps}; it must lie between 0 and 1")
        self._check_rope()
        return self

    def _check_rope(self) -> None:
        rope = self.rope
        if not (2 <= rope.rotary_dim <= self.head_dim and rope.rotary_dim % 2 == 0):
            raise ModelError(
                f"rotary dimension {rope.rotary_dim} must be even and at most the head dimension {self.head_dim}"
            )
        if not 1.0 < rope.theta < 1e30:
            raise ModelError(f"rotary base {rope.theta} must be greater than 1")
        if not 0.0 < rope.factor < 1e9:
            raise ModelError(f"rotary scaling factor {rope.factor} must be greater than 0")
        if rope.scaling in ("llama3", "yarn") and rope.original_max_position < 1:
            raise ModelError(f"rotary scaling {rope.scaling} needs the original context length")
        if rope.scaling == "llama3" and not 0.0 < rope.low_freq_factor < rope.high_freq_factor:
            raise ModelError("rotary scaling llama3 needs 0 < low_freq_factor < high_freq_factor")
        if rope.scaling == "yarn" and not (rope.beta_fast > 0.0 and rope.beta_slow > 0.0):
            raise ModelError("rotary scaling yarn needs positive beta_fast and beta_slow")
        if rope.scaling == "dynamic" and rope.rotary_dim < 4:
            raise ModelError(f"rotary scaling dynamic needs more than {rope.rotary_dim} rotary dimensions")
        if rope.scaling == "factors":
            if len(rope.factors) != rope.rotary_dim // 2:
                raise ModelError(
                    f"the file holds {len(rope.factors)} rotary frequency factors; {rope.rotary_dim // 2} are needed"
                )
            if not all(0.0 < factor < math.inf for factor in rope.factors):
                raise ModelError("a rotary frequency factor in the file is not a positive number")


EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def layer_tensors(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of one layer, under their Hugging Face names."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{layer}.input_layernorm.weight": (hidden,),
        f"model.layers.{layer}.post_attention_layernorm.weight": (hidden,),
    }
    projections = [
        (f"{attention}.q_proj", spec.q_size, hidden, spec.attention_bias),
        (f"{attention}.k_proj", spec.kv_size, hidden, spec.attention_bias),
        (f"{attention}.v_proj", spec.kv_size, hidden, spec.attention_bias),
        (f"{attention}.o_proj", hidden, spec.q_size, spec.output_bias),
        (f"{mlp}.gate_proj", inner, hidden, spec.mlp_bias),
        (f"{mlp}.up_proj", inner, hidden, spec.mlp_bias),
        (f"{mlp}.down_proj", hidden, inner, spec.mlp_bias),
    ]
    for name, rows, columns, bias in projections:
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


def stage_tensors(spec: ModelSpec, first: int, last: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of what a stage with layers [first, last) loads.

    The first stage has the embedding, the last one the final norm and the head; a tied head is the embedding.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    if first == 0:
        shapes[EMBEDDING] = (spec.vocab_size, spec.hidden_size)
    for layer in range(first, last):
        shapes.update(layer_tensors(spec, layer))
    if last == spec.num_layers:
        shapes[FINAL_NORM] = (spec.hidden_size,)
        shapes[EMBEDDING if spec.tie_embeddings else HEAD] = (spec.vocab_size, spec.hidden_size)
    return shapes
