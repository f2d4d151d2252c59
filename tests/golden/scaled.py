"""Writes scaled.json: a matrix as small floats with scales, by PyPI `ml_dtypes` (0.6.0) and NumPy.

    pip install ml_dtypes==0.6.0 numpy && python scaled.py

`x` is [3, 45], big-endian f32 in hexadecimal, with a block of zeros, blocks of very different sizes and one whose largest
magnitude is just above a power of two times every format's largest value. A case has the scale or the bytes of the scales,
[3, blocks], and the codes, [3, 45]. Negative zero is zero.
"""

import json
import pathlib

import ml_dtypes
import numpy as np

ROWS, K = 3, 45
FORMATS = {
    "F8E4M3": ml_dtypes.float8_e4m3fn,
    "F8E5M2": ml_dtypes.float8_e5m2,
    "F8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F6E2M3": ml_dtypes.float6_e2m3fn,
    "F6E3M2": ml_dtypes.float6_e3m2fn,
    "F4E2M1": ml_dtypes.float4_e2m1fn,
}
one = np.float32(1)


def floats(values):
    return np.asarray(values, dtype=">f4").tobytes().hex()


def e8m0(scale):
    mantissa, exponent = np.frexp(scale)
    byte = np.where(mantissa == 0.5, exponent - 1, exponent) + 127
    byte = np.clip(byte, 0, 254).astype(np.uint8)
    return byte, byte.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)


def e4m3(scale):
    code = np.minimum(scale, np.float32(448)).astype(ml_dtypes.float8_e4m3fn)
    return code.view(np.uint8), code.astype(np.float32)


def case(x, dtype, block, snap):
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    values = np.zeros((ROWS, -(-K // block) * block), dtype=np.float32)
    values[:, :K] = x
    blocks = values.reshape(ROWS, -1, block)
    amax = np.abs(blocks).max(axis=2)
    stored, scale = snap(np.where(amax > 0, amax / largest, one))
    scale = np.repeat(scale, block, axis=1)[:, :K]
    scaled = np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)
    codes = np.clip(scaled, -largest, largest).astype(dtype)
    codes = np.where(codes.astype(np.float32) == 0, 0, codes.view(np.uint8)).astype(np.uint8)
    return {"scales": stored.tobytes().hex(), "codes": codes.tobytes().hex()}


rng = np.random.default_rng(11)
x = rng.standard_normal((ROWS, K)).astype(np.float32)
x *= np.exp2(rng.integers(-9, 9, (ROWS, 3))).repeat(16, axis=1)[:, :K].astype(np.float32)
x[1, :32] = 0
x[2, :32] *= np.float32(2**-20)
# 7 * 2^6 and 7.5 * 2^5 are the largest values, or powers of two times them, of most formats.
x[0, 7] = np.nextafter(np.float32(448), np.float32(np.inf))
x[2, 40] = -240

cases = {}
for name, dtype in FORMATS.items():
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    scale = np.abs(x).max() / largest
    codes = (x / scale).astype(dtype)
    codes = np.where(codes.astype(np.float32) == 0, 0, codes.view(np.uint8)).astype(np.uint8)
    cases[name] = {
        "tensor": {"scales": floats(scale), "codes": codes.tobytes().hex()},
        "mx": case(x, dtype, 32, e8m0),
        "nvfp4": case(x, dtype, 16, e4m3),
    }

out = pathlib.Path(__file__).with_name("scaled.json")
out.write_text(json.dumps({"x": floats(x), "cases": cases}, indent=1) + "\n")
