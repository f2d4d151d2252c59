"""Writes minifloat.json: the values of all codes of small floats, and the codes of values, by PyPI `ml_dtypes` (0.6.0).

    pip install ml_dtypes==0.6.0 numpy && python minifloat.py

`values` are those of all codes in order, big-endian f32 in hexadecimal. `positive` and `negative` are the codes of `x` and `-x`, where
`x` is, for every two neighbouring finite values: the lower one, the middle, and the floats next to both on each side.
Nothing is above the largest value, since ml_dtypes does not saturate.
"""

import json
import pathlib

import ml_dtypes
import numpy as np

FORMATS = {
    "F8E4M3": (ml_dtypes.float8_e4m3fn, 8),
    "F8E5M2": (ml_dtypes.float8_e5m2, 8),
    "F8E4M3FNUZ": (ml_dtypes.float8_e4m3fnuz, 8),
    "F8E5M2FNUZ": (ml_dtypes.float8_e5m2fnuz, 8),
    "F6E2M3": (ml_dtypes.float6_e2m3fn, 6),
    "F6E3M2": (ml_dtypes.float6_e3m2fn, 6),
    "F4E2M1": (ml_dtypes.float4_e2m1fn, 4),
    "E8M0": (ml_dtypes.float8_e8m0fnu, 8),
}


def floats(values):
    return values.astype("<f4").byteswap().tobytes().hex()


cases = {}
for name, (dtype, bits) in FORMATS.items():
    codes = np.arange(1 << bits, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float32)
    case = cases[name] = {"values": floats(values)}
    if name == "E8M0":
        continue
    finite = np.unique(np.abs(values[np.isfinite(values)]))
    middles = (finite[:-1] + finite[1:]) / 2
    x = np.concatenate([finite, middles])
    up, down = np.float32(np.inf), np.float32(-np.inf)
    x = np.unique(np.concatenate([x, np.nextafter(x, up), np.nextafter(x, down)]))
    x = x[(x >= 0) & (x <= finite[-1])]
    case["x"] = floats(x)
    case["positive"] = x.astype(dtype).tobytes().hex()
    case["negative"] = (-x).astype(dtype).tobytes().hex()

out = pathlib.Path(__file__).with_name("minifloat.json")
out.write_text(json.dumps(cases, indent=1) + "\n")
