"""Small quantised matrices as checkpoints have them, and the values of their weights.

    pip install numpy ml_dtypes
    python3 tests/golden/quantized_checkpoints.py > tests/golden/quantized_checkpoints.json

Codes, zeros and scales are random; they are packed by loops that follow AutoGPTQ's and AutoAWQ's definitions, and the weights are
computed from what was packed, not from the packed words.
"""

import hashlib
import json

import ml_dtypes
import numpy as np

N, K = 96, 64
rng = np.random.default_rng(1)


def tensor(dtype, array):
    return {"dtype": dtype, "shape": list(array.shape), "data": array.tobytes().hex()}


def case(config, tensors, weights, kept):
    weights = weights.astype(np.float32)
    assert weights.shape == (N, K)
    return {
        "config": config,
        "tensors": tensors,
        "kept": kept,
        "first": [float(x) for x in weights[0, :4]],
        "sha256": hashlib.sha256(weights.tobytes()).hexdigest(),
    }


def float8(dtype, config, suffix, scale_dtype, scales, spread):
    kind = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}[dtype]
    codes = rng.integers(0, 256, (N, K), dtype=np.uint8)
    finite = np.isfinite(codes.view(kind).astype(np.float32))
    codes[~finite] = 0x80
    scales = scales.astype(scale_dtype)
    weights = codes.view(kind).astype(np.float32) * spread(scales.astype(np.float32))
    name = "F32" if scale_dtype == np.float32 else "BF16"
    return case(config, {"weight": tensor(dtype, codes), suffix: tensor(name, scales)}, weights, "f32")


def scales(groups):
    return (rng.standard_normal((groups, N)) * 0.02).astype(np.float16)


def pack_gptq(codes, bits, axis):
    """Words along an axis, the first code in the lowest bits."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, 0)
    per = 32 // bits
    words = np.zeros((codes.shape[0] // per,) + codes.shape[1:], np.uint32)
    for i in range(codes.shape[0]):
        words[i // per] |= codes[i] << np.uint32(bits * (i % per))
    return np.ascontiguousarray(np.moveaxis(words, 0, axis)).view(np.int32)


def gptq(bits, group, symmetric, act_order, version, kept):
    groups = K // group
    codes = rng.integers(0, 1 << bits, (K, N))
    zeros = np.full((groups, N), 1 << (bits - 1)) if symmetric else rng.integers(1, 1 << bits, (groups, N))
    scale = scales(groups)
    g_idx = np.arange(K, dtype=np.int32) // group
    if act_order:
        rng.shuffle(g_idx)
    weights = scale[g_idx].astype(np.float32) * (codes - zeros[g_idx]).astype(np.float32)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order}
    tensors = {
        "qweight": tensor("I32", pack_gptq(codes, bits, 0)),
        "qzeros": tensor("I32", pack_gptq(zeros - (version == 1), bits, 1)),
        "scales": tensor("F16", scale),
    }
    if version == 2:
        config["checkpoint_format"] = "gptq_v2"
    else:
        tensors["g_idx"] = tensor("I32", g_idx)
    return case(config, tensors, weights.T, kept)


def pack_awq(codes):
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for column in range(words.shape[1]):
        for field, output in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            words[:, column] |= codes[:, 8 * column + output].astype(np.uint32) << np.uint32(4 * field)
    return words.view(np.int32)


def awq(group):
    codes, zeros = rng.integers(0, 16, (K, N)), rng.integers(0, 16, (K // group, N))
    scale, g_idx = scales(K // group), np.arange(K) // group
    weights = scale[g_idx].astype(np.float32) * (codes - zeros[g_idx]).astype(np.float32)
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    tensors = {
        "qweight": tensor("I32", pack_awq(codes)),
        "qzeros": tensor("I32", pack_awq(zeros)),
        "scales": tensor("F16", scale),
    }
    return case(config, tensors, weights.T, "f32")


blocks = lambda s: np.kron(s, np.ones((32, 16), np.float32))
fp8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
compressed = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {}}
print(json.dumps({
    "fp8 blocks": float8("F8_E4M3", fp8 | {"weight_block_size": [32, 16]}, "weight_scale_inv", np.float32,
                         rng.uniform(0.001, 0.1, (3, 4)), blocks),
    "fp8 tensor": float8("F8_E5M2", fp8, "weight_scale", np.float32, rng.uniform(1e-6, 1e-5, ()), lambda s: s),
    "compressed-tensors channels": float8("F8_E4M3", compressed, "weight_scale", ml_dtypes.bfloat16,
                                          rng.uniform(0.001, 0.1, (N, 1)), lambda s: s),
    "gptq": gptq(4, 32, True, False, 1, "q4"),
    "gptq, a group a row": gptq(4, 64, True, False, 2, "q4"),
    "gptq of 8 bits": gptq(8, 32, True, False, 2, "q8"),
    "gptq with zeros": gptq(4, 32, False, False, 1, "f32"),
    "gptq in the order of activations": gptq(4, 32, True, True, 1, "f32"),
    "awq": awq(32),
}, indent=1))
