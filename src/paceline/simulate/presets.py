"""Pipelines to simulate without having measured one: proportions and sizes of typical machines.

`cpu-2` is a 135M-parameter model on two CPU cores; the others a 70B-parameter model over data-centre GPUs, where half the
layers per stage cost half the time.
"""

from __future__ import annotations

from paceline.scheduling.cost_model import CostModel, StageCost, uniform

_GPU_4 = StageCost(fixed=1.05e-2, token=4.4e-5, sequence=6e-6, decode_context=6e-8, prefill_context=4e-9)
_GPU_8 = StageCost(fixed=5.3e-3, token=2.2e-5, sequence=3e-6, decode_context=3e-8, prefill_context=2e-9)

PRESETS: dict[str, CostModel] = {
    "cpu-2": uniform(2, StageCost(fixed=2e-3, token=7e-4, sequence=1e-4, decode_context=2e-6, prefill_context=1e-7)),
    "gpu-70b-4": uniform(4, _GPU_4),
    "gpu-70b-8": uniform(8, _GPU_8),
}

# Requests per second near what each pipeline can serve under even pacing.
RATES: dict[tuple[str, str], float] = {
    ("cpu-2", "short"): 2.2,
    ("cpu-2", "mixed"): 0.35,
    ("cpu-2", "long"): 0.13,
    ("gpu-70b-4", "short"): 10.0,
    ("gpu-70b-4", "mixed"): 4.5,
    ("gpu-70b-4", "long"): 1.9,
    ("gpu-70b-8", "short"): 18.0,
    ("gpu-70b-8", "mixed"): 9.0,
    ("gpu-70b-8", "long"): 3.8,
}
