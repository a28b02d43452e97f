"""The shipped problems, computed by plain numpy from their bytes, against `headwater run`; and what their metadata must say."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import ml_dtypes
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.safetensors"))
COMMAND = pathlib.Path(os.environ.get("HEADWATER_BUILD_DIR", ROOT / "build")) / "headwater"
sys.path.insert(0, str(ROOT / "tools"))
import make_synthetic  # noqa: E402
import problem_file  # noqa: E402

DTYPES = {name: dtype for dtype, name in problem_file.DTYPE_NAMES.items()}


def read(path):
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    metadata = header.pop("__metadata__", {})
    tensors = {k: np.frombuffer(data[slice(*v["data_offsets"])], dtype=DTYPES[v["dtype"]]).reshape(v["shape"]) for k, v in header.items()}
    return tensors, metadata


def problems(tensors, metadata):
    """{prefix: (tensors, metadata)} without prefixes; unprefixed metadata serves every layer."""
    prefixes = sorted({".".join(k.split(".")[:2]) + "." for k in tensors if k.startswith("layers.")}) or [""]
    shared = {k: v for k, v in metadata.items() if not k.startswith("layers.")}
    for p in prefixes:
        own = {k[len(p) :]: v for k, v in metadata.items() if p and k.startswith(p)}
        yield p, {k[len(p) :]: v for k, v in tensors.items() if k.startswith(p)}, shared | own


def mxfp4(codes, scales):
    values = np.concatenate([make_synthetic.E2M1_VALUES, -make_synthetic.E2M1_VALUES])
    x = np.stack([values[codes & 15], values[codes >> 4]], axis=-1).reshape(*codes.shape[:-1], -1, 32)
    return (x * np.exp2(scales.astype(np.float64) - 127)[..., None]).reshape(*codes.shape[:-1], -1)


def stored_rows(t, m, s):
    """K and V of source s as float64 [slots, heads, width]."""
    p = f"kv.{s}."
    page_size = int(m.get(p + "page_size", 1))
    if m.get(p + "format") == "fp8_ds_584":
        k = make_synthetic.from_ds584_pages(t[p + "bytes"], page_size, len(t[p + "bytes"]) * page_size)[:, None]
    elif m.get(p + "format") == "mxfp4":
        k = mxfp4(t[p + "bytes"], t[p + "scales"])
    else:
        k = t[p + "k"] if p + "k" in t else t[p + "latent"]
    paged = k.ndim == 4
    page_size = k.shape[1] if paged else page_size
    k = k.reshape(-1, *k.shape[-2:]).astype(np.float64) * float(t.get(p + "k_scale", np.ones(1))[0])
    if p + "v" in t:
        v = t[p + "v"].reshape(k.shape[0], k.shape[1], -1).astype(np.float64)
    else:
        v = k[..., : int(m[p + "value_width"])]
    return k, v, page_size


def seen_slots(t, m, s, b, row, position, context, page_size, slots):
    p = f"kv.{s}."
    if m[p + "rule"] == "gathered":
        listed = t[p + "indices"][row]
        return listed[listed >= 0]
    if p + "block_table" in t:
        j = np.arange(t[p + "seq_lens"][b])
        slot = t[p + "block_table"][b][j // page_size].astype(np.int64) * page_size + j % page_size
    else:
        begin, end = t.get(p + "kv_indptr", np.array([0, slots]))[b : b + 2]
        slot, j = np.arange(begin, end), np.arange(end - begin)
    at = j + (t[p + "first_position"][b] if p + "first_position" in t else 0)
    if m[p + "rule"] == "compressed":
        return slot[(at + 1) * int(m[p + "ratio"]) <= position + 1]
    left = int(m[p + "window_left"]) if m[p + "rule"] == "window" else context
    return slot[(at <= position) & (at >= position - left)]


def attention(t, m):
    """out [total_q, heads, d_v] and lse [total_q, heads] in float64, by the definitions."""
    q = t["q"].astype(np.float64)
    sources = sorted({int(k.split(".")[1]) for k in t if k.startswith("kv.")})
    rows = {s: stored_rows(t, m, s) for s in sources}
    qo = t.get("qo_indptr", np.array([0, len(q)]))
    out, lse = np.zeros((*q.shape[:2], rows[0][1].shape[-1])), np.zeros(q.shape[:2])
    for b in range(len(qo) - 1):
        if "context_lens" in t:
            context = int(t["context_lens"][b])
        elif "kv.0.seq_lens" in t:
            context = int(t["kv.0.seq_lens"][b])
        else:
            context = int(np.diff(t.get("kv.0.kv_indptr", np.array([0, len(rows[0][0])])))[b])
        for row in range(qo[b], qo[b + 1]):
            position = context - (qo[b + 1] - row)
            slots = {s: seen_slots(t, m, s, b, row, position, context, rows[s][2], len(rows[s][0])) for s in sources}
            for h in range(q.shape[1]):
                group = {s: h * rows[s][0].shape[1] // q.shape[1] for s in sources}
                k = np.concatenate([rows[s][0][slots[s], group[s]] for s in sources])
                v = np.concatenate([rows[s][1][slots[s], group[s]] for s in sources])
                z = float(m["sm_scale"]) * (k @ q[row, h])
                top = z.max()
                w = np.exp(z - top)
                sink = np.exp(float(t["sinks"][h]) - top) if "sinks" in t else 0.0
                lse[row, h] = top + np.log(w.sum())
                out[row, h] = w @ v / (w.sum() + sink)
    return out, lse


class Examples(unittest.TestCase):
    def test_run_gives_what_numpy_gives(self):
        for path in EXAMPLES:
            with self.subTest(path.name), tempfile.TemporaryDirectory() as folder:
                answer = pathlib.Path(folder) / "out.safetensors"
                subprocess.run([COMMAND, "run", path, "-o", answer], check=True, stdout=subprocess.DEVNULL)
                got, _ = read(answer)
                for prefix, t, m in problems(*read(path)):
                    out, lse = attention(t, m)
                    error = np.linalg.norm(got[prefix + "out"].astype(np.float64) - out, axis=-1)
                    size = np.linalg.norm(out, axis=-1)
                    self.assertLess(np.max(error / size), 1.2e-2, prefix)  # bf16 output; rows whose V cancel lose some of it
                    self.assertLess(np.linalg.norm(error) / np.linalg.norm(size), 3e-3, prefix)
                    self.assertLess(np.max(np.abs(got[prefix + "lse"] - lse) / (1 + np.abs(lse))), 2e-5, prefix)

    def test_metadata_tells_what_it_is(self):
        self.assertGreaterEqual(len(EXAMPLES), 10)
        for path in EXAMPLES:
            _, metadata = read(path)
            if path.name.startswith("smollm2"):
                self.assertEqual(metadata["note.kind"], "capture")
                self.assertIn("Q4_1 GGUF", metadata["origin"])
            else:
                self.assertEqual(metadata["note.kind"], "synthetic")
            self.assertTrue(metadata["text"])

    def test_size(self):
        self.assertLess(sum(path.stat().st_size for path in EXAMPLES), 12_000_000)

    def test_synthetic_files_are_what_the_script_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, ROOT / "tools/make_synthetic.py", "--out", folder], check=True, stdout=subprocess.DEVNULL)
            made = sorted(pathlib.Path(folder).iterdir())
            self.assertEqual([p.name for p in made], [p.name for p in EXAMPLES if not p.name.startswith("smollm2")])
            for path in made:
                new, old = path.read_bytes(), (ROOT / "examples" / path.name).read_bytes()
                header = 8 + int.from_bytes(old[:8], "little")
                self.assertEqual(new[:header], old[:header], path.name)
                self.assertEqual(len(new), len(old))
                changed = np.count_nonzero(np.frombuffer(new, np.uint8) != np.frombuffer(old, np.uint8))
                self.assertLess(changed, 0.01 * len(old), f"{path.name}: another BLAS may move a last bit here and there, not this many")


if __name__ == "__main__":
    unittest.main()
