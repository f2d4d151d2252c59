"""Makes spm.json: a small vocabulary of SentencePiece, and what its library makes of the cases of make.py.

    pip install sentencepiece==0.2.3 protobuf==7.36.2 tokenizers==0.23.3
    python make_spm.py

A BPE model in the manner of Gemma is trained on the text of make.py: no prefix, nothing normalised, bytes as fallback,
tokens of the user's own. `pieces` are `[piece, score, type]` by id, as GGUF files have them: of tokens of the user's own the
spaces are plain there.
"""

import io
import json
import runpy
import sys
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto

HERE = Path(__file__).parent
USER_DEFINED = ["\n", "\n\n", "\n\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "<b>", "</b>"]
CASES = [
    "a <b>bold</b>\n\n\n\nword", "    def f():\n        return 1", "<b", "x<b><b></b>", "bridgebridge", "<0x41>",
    "<unk> <s> </s>", "\u2581\u2581", " \u2581\u2581  the",
]


def main():
    sys.argv = sys.argv[:1]
    make = runpy.run_path(HERE / "make.py", run_name="cases")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(make["TEXT"].split("\n")), model_writer=model, model_type="bpe", vocab_size=560,
        byte_fallback=True, normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
        user_defined_symbols=USER_DEFINED, character_coverage=0.98, split_by_whitespace=False, pad_id=3,
    )
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    parsed = proto.ModelProto.FromString(model.getvalue())
    plain = lambda p: p.piece.replace("\u2581", " ") if p.type == 4 else p.piece
    cases = make["CASES"] + CASES
    # The library takes a null for the end of a text.
    cases = [case for case in cases if "\0" not in case]
    value = {
        "pieces": [[plain(p), p.score, p.type] for p in parsed.pieces],
        "cases": cases,
        "ids": [spm.encode(case) for case in cases],
    }
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    (HERE / "spm.json").write_text(text + "\n", encoding="ascii")


main()
