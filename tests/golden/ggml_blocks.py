"""Writes ggml_blocks.json: blocks of every imported GGML type and their values, by PyPI `gguf` (0.19.0) and NumPy.

    pip install gguf==0.19.0 && python ggml_blocks.py

Bytes and values (f32, little-endian) are in hexadecimal. Codes are random; the scales are a usual one, a negative one,
the largest and the smallest (subnormal) half; scales of a byte are the least, the largest and some between.
"""

import json
import pathlib

import gguf
import numpy as np

SCALES = np.array([0.0123, -0.37, 65504.0, 6e-8], dtype=np.float16)
MINS = np.array([-0.11, 2.5, -65504.0, 6e-8], dtype=np.float16)

# Where the halves of a superblock begin.
SUPERBLOCKS = {
    "Q2_K": 80,
    "Q3_K": 108,
    "Q4_K": 0,
    "Q5_K": 0,
    "Q6_K": 208,
    "IQ4_XS": 0,
    "TQ1_0": 52,
    "TQ2_0": 64,
}

# Scales of bytes, those of a block after the other. 0x7f is not a number in NVFP4, which counts as 0.
BYTES = {
    "MXFP4": [[0], [1], [127], [252]],
    "NVFP4": [[0, 1, 7, 8], [0x38, 0x7E, 0x7F, 0x41]],
}


def values_of(typed, kind):
    """The package has no values of Q1_0: signs of one scale for 128 weights, in the order of the bits."""
    if kind != gguf.GGMLQuantizationType.Q1_0:
        return gguf.dequantize(typed, kind)
    blocks = typed.reshape(-1, 18)
    signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1
    return blocks[:, :2].copy().view(np.float16).astype(np.float32) * signs


rng = np.random.default_rng(7)
cases = {}
PLAIN = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
for name in [*PLAIN, *SUPERBLOCKS, "IQ4_NL", "Q1_0", *BYTES]:
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if block == 1:
        values = rng.standard_normal(64).astype(np.float32)
        raw = gguf.quantize(values, kind).view(np.uint8).reshape(-1)
    elif name in BYTES:
        scales = np.array(BYTES[name], dtype=np.uint8)
        raw = rng.integers(0, 256, (len(scales), size), dtype=np.uint8)
        raw[:, : scales.shape[1]] = scales
        raw = raw.reshape(-1)
    else:
        raw = rng.integers(0, 256, (len(SCALES), size), dtype=np.uint8)
        scale = SUPERBLOCKS.get(name, 0)
        raw[:, scale : scale + 2] = SCALES.view(np.uint8).reshape(-1, 2)
        if name.endswith("_1") or name in ("Q2_K", "Q4_K", "Q5_K"):
            raw[:, scale + 2 : scale + 4] = MINS.view(np.uint8).reshape(-1, 2)
        raw = raw.reshape(-1)
    typed = raw.view({"F32": np.float32, "F16": np.float16}.get(name, np.uint8))
    values = values_of(typed, kind).astype("<f4")
    cases[name] = {"bytes": raw.tobytes().hex(), "values": values.tobytes().hex()}

out = pathlib.Path(__file__).with_name("ggml_blocks.json")
out.write_text(json.dumps(cases, indent=1) + "\n")
