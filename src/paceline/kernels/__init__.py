"""The few hot operations of a decoder, each with one signature: native code on CPU, torch everywhere."""

from paceline.kernels.linear import Linear
from paceline.kernels.reference import add_rms_norm, paged_attention, rms_norm, rotate_and_store, silu_mul

__all__ = ["Linear", "add_rms_norm", "paged_attention", "rms_norm", "rotate_and_store", "silu_mul"]
