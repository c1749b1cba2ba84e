#!/usr/bin/python3
"""Golden vectors, computed from kernels/FORMAT.md alone.

    generate.py            checks that the files beside it are what it computes
    generate.py --update   writes them; say in the commit why they changed

This is a second implementation of the format, in numpy and Python integers:
nothing here may be copied from the C++. Arrays are hex strings of their
little-endian bytes.
"""

import json
import math
import os
import sys
from fractions import Fraction

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
F32 = np.float32
MASK64 = (1 << 64) - 1
MASK32 = (1 << 32) - 1
GOLDEN = 0x9E3779B97F4A7C15


# --- section 5: random numbers ---------------------------------------------


def mix(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & MASK64
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & MASK64
    return z ^ (z >> 31)


def job_key(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK64
    return h


def stochastic_key(seed, job, tensor, step, hop):
    k = seed
    for w in (job, tensor, step, hop):
        k = mix(((k + GOLDEN) & MASK64) ^ w)
    return k


def cell_key(key, cell):
    return mix((key + (cell + 1) * GOLDEN) & MASK64)


def random_bits(c, i):
    x = ((c & MASK32) + i * 0x9E3779B9) & MASK32
    x ^= x >> 16
    x = x * 0x7FEB352D & MASK32
    x ^= c >> 32
    x ^= x >> 15
    x = x * 0x846CA68B & MASK32
    return x ^ (x >> 16)


# --- inputs ------------------------------------------------------------------


def uniforms(count, seed):
    return [mix((seed * 0x10001 + i * GOLDEN) & MASK64) / 2.0**64
            for i in range(1, count + 1)]


def normals(count, seed):
    """About normal, by the sum of twelve uniforms; fp32."""
    u = np.array(uniforms(12 * count, seed)).reshape(count, 12)
    return (u.sum(axis=1) - 6).astype(F32)


def to_hex(array):
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder("<")).tobytes().hex()


def from_bits(bits):
    return np.array(bits, np.uint32).view(F32)


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 & MASK64
    return "%016x" % h


# --- section 6: element types -----------------------------------------------


def nearest(bits, mantissa, low_exponent, bias):
    """Bits of the nearest small float, by exact rational arithmetic."""
    sign = bits >> 31
    value = Fraction(float(from_bits([bits & 0x7FFFFFFF])[0]))
    exponent_bits = 15 - mantissa
    if value == 0:
        return sign << 15
    exponent = low_exponent
    while value >= Fraction(2)**(exponent + 1):
        exponent += 1
    unit = Fraction(2)**(exponent - mantissa)
    steps = value / unit
    whole = steps.numerator // steps.denominator
    rest = steps - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
        whole += 1
    if whole >> mantissa > 1:
        whole >>= 1
        exponent += 1
    if exponent > bias:
        return sign << 15 | ((1 << exponent_bits) - 1) << mantissa
    if whole >> mantissa == 0:
        return sign << 15 | whole
    return (sign << 15 | (exponent + bias) << mantissa |
            whole & ((1 << mantissa) - 1))


def to_bf16_bits(bits):
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 | 0x40
    if bits & 0x7FFFFFFF == 0x7F800000:
        return bits >> 16
    return nearest(bits, 7, -126, 127)


def to_fp16_bits(bits):
    magnitude = bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return bits >> 31 << 15 | 0x7E00 | magnitude >> 13 & 0x3FF
    if magnitude == 0x7F800000:
        return bits >> 31 << 15 | 0x7C00
    return nearest(bits, 10, -14, 15)


def cast(array, dtype):
    if dtype == "float32":
        return array
    convert = {"bfloat16": to_bf16_bits, "float16": to_fp16_bits}[dtype]
    bits = array.view(np.uint32)
    return np.array([convert(int(b)) for b in bits], np.uint16)


def widen(storage, dtype):
    if dtype == "float32":
        return storage
    if dtype == "float16":
        return storage.view(np.float16).astype(F32)
    return (storage.astype(np.uint32) << 16).view(F32)


def convert_file():
    bits = [0, 0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7F800001,
            0xFF8FFFFF, 0x7FC00000, 0x3F808000, 0x3F818000, 0x7F7FFFFF,
            0x477FEFFF, 0x477FF000, 0x33000000, 0x33000001, 0x33800000,
            0x387FC000, 0x387FE000, 0x387FFFFF, 0x38800000, 0x7149F2CA]
    for i, u in enumerate(uniforms(200, 1)):
        wide = int(u * 2**32)
        # Half of them near fp16's range.
        bits.append(wide if i % 2 else
                    (wide & 0x807FFFFF) | (100 + i % 45) << 23)
    return {
        "float32": to_hex(np.array(bits, np.uint32)),
        "bfloat16": to_hex(np.array([to_bf16_bits(b) for b in bits],
                                    np.uint16)),
        "float16": to_hex(np.array([to_fp16_bits(b) for b in bits],
                                   np.uint16)),
    }


# --- section 7: sums ----------------------------------------------------------


def tree(leaves):
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while left * 2 < len(leaves):
        left *= 2
    return tree(leaves[:left]) + tree(leaves[left:])


def sum_file():
    cases = []
    for world, dtype in ((1, "float32"), (2, "bfloat16"), (3, "float32"),
                         (4, "float16"), (5, "bfloat16"), (6, "float32"),
                         (7, "float32"), (15, "float16"), (24, "float32")):
        stored = [cast(normals(24, 100 * world + r), dtype)
                  for r in range(world)]
        leaves = [widen(s, dtype) for s in stored]
        total = tree(leaves)
        in_order = leaves[0]
        for leaf in leaves[1:]:
            in_order = in_order + leaf
        cases.append({"dtype": dtype, "sources": [to_hex(s) for s in stored],
                      "sum": to_hex(total), "mean": to_hex(total / F32(world)),
                      "rank_order_sum": to_hex(in_order)})
    return {"cases": cases}


def cell_norm(x):
    lanes = [0.0] * 8
    for i, value in enumerate(x):
        lanes[i % 8] += float(value) * float(value)
    for j in range(4):
        lanes[j] += lanes[j + 4]
    for j in range(2):
        lanes[j] += lanes[j + 2]
    return lanes[0] + lanes[1]


def norm_file():
    cells = []
    for count in (0, 1, 7, 300, 2048):
        x = normals(count, 7000 + count)
        cells.append({"x": to_hex(x), "norm2": float(cell_norm(x)).hex()})
    sums = []
    for case in range(40):
        u = uniforms(90, 9000 + case)
        spread = (4, 60, 600, 1020)[case % 4]
        values = [math.ldexp(0.5 + u[3 * i] / 2,
                             int((u[3 * i + 1] * 2 - 1) * spread))
                  for i in range(1 + case % 30)]
        exact = sum(map(Fraction, values), Fraction(0))
        # int / int is correctly rounded in Python, also below 2^-1022.
        sums.append({"values": [v.hex() for v in values],
                     "sum": (exact.numerator / exact.denominator).hex()})
    return {"cells": cells, "sums": sums}


# --- section 8: optimizers -----------------------------------------------------


def step_scalars(kind, h, t):
    beta1, beta2 = h.get("beta1", 0.9), h.get("beta2", 0.999)
    decay = h.get("weight_decay", 0.0)
    s = dict(clip=h.get("clip", 1.0), step_size=h["lr"], weight_decay=decay,
             decay=1.0, beta1=0.0, one_minus_beta1=1.0, beta2=0.0,
             one_minus_beta2=1.0, inv_sqrt_bias2=1.0, eps=0.0)
    flags, initial = 0, 0.0
    if kind == "sgd":
        if h.get("momentum", 0.0) != 0:
            s["beta1"] = h["momentum"]
            s["one_minus_beta1"] = 1 - h.get("dampening", 0.0)
            flags = 1 | (2 if t == 1 else 0) | (4 if h.get("nesterov") else 0)
    elif kind == "adagrad":
        s["step_size"] = h["lr"] / (1 + (t - 1) * h.get("lr_decay", 0.0))
        s["eps"] = h.get("eps", 1e-8)
        initial = h.get("initial_accumulator_value", 0.0)
        flags = 2 if t == 1 else 0
    elif kind == "lion":
        s["beta1"], s["one_minus_beta1"] = beta1, 1 - beta1
        s["beta2"], s["one_minus_beta2"] = beta2, 1 - beta2
        s["weight_decay"] = 0.0
        s["decay"] = 1 - h["lr"] * decay
    else:
        s["step_size"] = h["lr"] / (1 - beta1**t)
        s["beta1"], s["one_minus_beta1"] = beta1, 1 - beta1
        s["beta2"], s["one_minus_beta2"] = beta2, 1 - beta2
        s["inv_sqrt_bias2"] = 1 / math.sqrt(1 - beta2**t)
        s["eps"] = h.get("eps", 1e-8)
        if kind == "adamw":
            s["weight_decay"] = 0.0
            s["decay"] = 1 - h["lr"] * decay
    return ({name: F32(value) for name, value in s.items()}, flags,
            F32(initial))


def update(kind, s, flags, initial, g, w, m, v):
    g = g * s["clip"]
    if kind == "sgd":
        if s["weight_decay"] != 0:
            g = g + s["weight_decay"] * w
        if flags & 1:
            m = g if flags & 2 else (s["beta1"] * m +
                                     s["one_minus_beta1"] * g)
            g = g + s["beta1"] * m if flags & 4 else m
        return w - s["step_size"] * g, m, v
    if kind == "adagrad":
        if s["weight_decay"] != 0:
            g = g + s["weight_decay"] * w
        m = (np.full_like(m, initial) if flags & 2 else m) + g * g
        d = np.sqrt(m) + s["eps"]
        return w - (s["step_size"] * g) / d, m, v
    if kind == "lion":
        w = s["decay"] * w
        c = s["beta1"] * m + s["one_minus_beta1"] * g
        m = s["beta2"] * m + s["one_minus_beta2"] * g
        return w - s["step_size"] * np.sign(c), m, v
    w = s["decay"] * w
    if s["weight_decay"] != 0:
        g = g + s["weight_decay"] * w
    m = s["beta1"] * m + s["one_minus_beta1"] * g
    v = s["beta2"] * v + (s["one_minus_beta2"] * g) * g
    d = np.sqrt(v) * s["inv_sqrt_bias2"] + s["eps"]
    return w - (s["step_size"] * m) / d, m, v


def optimizer_file():
    cases = []
    for kind, dtype, h in (
        ("sgd", "float32", {"lr": 0.1}),
        ("sgd", "bfloat16", {"lr": 0.1, "weight_decay": 0.01,
                             "momentum": 0.9}),
        ("sgd", "float16", {"lr": 0.1, "momentum": 0.9, "dampening": 0.25,
                            "clip": 0.3}),
        ("sgd", "float32", {"lr": 0.1, "momentum": 0.9, "nesterov": True,
                            "weight_decay": 0.1}),
        ("adam", "float32", {"lr": 1e-3, "weight_decay": 0.1}),
        ("adam", "bfloat16", {"lr": 3e-4, "beta2": 0.95, "clip": 0.7}),
        ("adamw", "float16", {"lr": 3e-4, "beta1": 0.8, "beta2": 0.95,
                              "weight_decay": 0.1, "eps": 1e-6}),
        ("adamw", "bfloat16", {"lr": 6e-4, "weight_decay": 0.1,
                               "clip": 0.123}),
        ("lion", "bfloat16", {"lr": 1e-4, "beta2": 0.99, "clip": 0.5,
                              "weight_decay": 0.1}),
        ("lion", "float32", {"lr": 0.01, "beta1": 0.95, "beta2": 0.98}),
        ("adagrad", "float16", {"lr": 0.01, "eps": 1e-10}),
        ("adagrad", "float32", {"lr": 0.01, "eps": 1e-10, "lr_decay": 0.1,
                                "weight_decay": 0.1, "clip": 0.7,
                                "initial_accumulator_value": 0.5}),
    ):
        count = 19
        w = normals(count, 300)
        m = np.zeros(count, F32)
        v = np.zeros(count, F32)
        case = {"kind": kind, "dtype": dtype, "hyper": h, "w": to_hex(w),
                "steps": []}
        for t in range(1, 6):
            g = normals(count, 400 + t)
            s, flags, initial = step_scalars(kind, h, t)
            w, m, v = update(kind, s, flags, initial, g, w, m, v)
            bits = to_hex(np.array(list(s.values()), F32))
            bits += to_hex(np.array([flags], np.uint32)) + to_hex(initial)
            case["steps"].append({
                "scalars": bits, "g": to_hex(g), "w": to_hex(w),
                "m": to_hex(m), "v": to_hex(v),
                "weight": to_hex(cast(w, dtype))})
        cases.append(case)
    return {"cases": cases}


# --- sections 2 to 4: codec ------------------------------------------------


def group_of(count):
    """The largest power of two up to 32 that divides a block's length."""
    return math.gcd(count, 32)


def rotate(x):
    """Groups of what divides the block, strides ascending."""
    group = group_of(len(x))
    x = x.reshape(-1, group).copy()
    s = 1
    while s < group:
        low = [i for i in range(group) if not i & s]
        high = [i + s for i in low]
        a, b = x[:, low], x[:, high]
        x[:, low], x[:, high] = a + b, a - b
        s *= 2
    return x.reshape(-1)


def encode_block(spec, c, position, x):
    zeros = np.zeros(len(x), np.int64)
    absmax = np.max(np.abs(x))
    if not np.all(np.isfinite(x)):
        return from_bits([0x7FC00000])[0], zeros
    if absmax < F32(2.0**-120):
        return F32(1), zeros
    half = 2**(spec["bits"] - 1)
    divisor = F32(half - 1 if spec["range"] == "sym" else half)
    y = x * (divisor / absmax)
    if spec["rounding"] == "nearest":
        r = np.rint(y)
    else:
        a = np.abs(y)
        f = np.trunc(a)
        u = np.array([random_bits(c, position + i) >> 8
                      for i in range(len(x))]) / 2.0**24
        r = np.sign(y) * (f + (u < (a - f).astype(np.float64)))
    low = -divisor
    codes = np.clip(r, low, half - 1).astype(np.int64)
    return absmax / divisor, codes


def pad16(data):
    return data + bytes(-len(data) % 16)


def pack(codes, bits):
    mask, out = 2**bits - 1, bytearray(-(-len(codes) * bits // 8))
    for i, code in enumerate(codes):
        out[i * bits // 8] |= (int(code) & mask) << (i * bits % 8)
    return bytes(out)


def encode(spec, key, first, x):
    scales, codes, values = [], [], []
    for begin in range(0, len(x), 2048):
        cell = x[begin:begin + 2048]
        c = cell_key(key, (first + begin) // 2048)
        for p in range(0, len(cell), spec["block"]):
            x_block = cell[p:p + spec["block"]]
            if spec["hadamard"]:
                x_block = rotate(x_block)
            scale, block = encode_block(spec, c, p, x_block)
            scales.append(scale)
            codes.extend(block)
            decoded = block.astype(F32) * scale
            if spec["hadamard"]:
                decoded = rotate(decoded) * F32(1 / group_of(len(decoded)))
            values.append(decoded)
    encoded = pad16(np.array(scales, F32).tobytes())
    encoded += pad16(pack(codes, spec["bits"]))
    return encoded, np.concatenate(values)


def wire_name(spec):
    return bytes([1, spec["bits"], spec["block"].bit_length() - 1,
                  {"sym": 1, "clip16": 2}[spec["range"]], spec["hadamard"],
                  {"nearest": 1, "stochastic": 2}[spec["rounding"]], 1,
                  0]).hex()


def codec_inputs():
    long = normals(2048 + 77, 50)
    long[5], long[700], long[2100] = F32(40), F32(-25), F32(1e-30)
    special = normals(400, 51)
    special[0:128] = 0
    special[130] = np.nan
    special[256:384] = F32(2.0**-130)
    special[384:400] *= F32(1e30)
    example = np.array([1, -1, .5, -.5, .3, 0, -.0625, .9375], F32)
    # Short blocks whose Hadamard groups have 2, 8 and 16 elements.
    tails = {"tail%d" % count: normals(count, 60 + count)
             for count in (54, 128 + 24, 48)}
    return {"example": example, "long": long, "special": special,
            "one": np.array([-3.25], F32), **tails}


def codec_file():
    inputs = codec_inputs()
    key = stochastic_key(1, job_key("gpt2"), 2, 3, 0)
    cases = []
    blocks = iter([256, 128, 2048, 64, 32, 512, 1024, 128] * 12)
    for bits in (8, 4, 2):
        for range_name in ("sym", "clip16"):
            for hadamard in (0, 32):
                for rounding in ("nearest", "stochastic"):
                    for name, x in inputs.items():
                        block = (next(blocks) if name == "long" else 128)
                        spec = {"bits": bits, "block": block,
                                "range": range_name, "hadamard": hadamard,
                                "rounding": rounding}
                        first = 5 * 2048
                        encoded, values = encode(spec, key, first, x)
                        case = {"input": name, "spec": wire_name(spec),
                                "first": first, "encoded": encoded.hex()}
                        if name == "long":
                            case["decoded_fnv"] = fnv(values.tobytes())
                        else:
                            case["decoded"] = to_hex(values)
                        cases.append(case)
    return {"key": "%016x" % key,
            "inputs": {name: to_hex(x) for name, x in inputs.items()},
            "cases": cases}


def delta_file():
    """Three versions of a tensor whose masters move, sections 9 and 6; then
    the same from published weights that are not finite everywhere."""
    cases = []
    for bits, block, bad in ((4, 2048, []), (2, 2048, []), (8, 256, []),
                             (4, 32, [3, 40, 199])):
        for dtype in ("float32", "bfloat16", "float16"):
            spec = {"bits": bits, "block": block, "range": "sym",
                    "hadamard": 0, "rounding": "nearest"}
            master = normals(200, 70)
            start = master.copy()
            start[bad] = [np.nan, np.inf, -np.inf][:len(bad)]
            published = cast(start, dtype)
            case = {"spec": wire_name(spec), "dtype": dtype,
                    "published": to_hex(published), "versions": []}
            for version in (1, 2, 3):
                master = (master + normals(200, 70 + version) *
                          F32(0.01)).astype(F32)
                reference = widen(published, dtype)
                reference[~np.isfinite(reference)] = 0
                encoded, values = encode(spec, 0, 0, master - reference)
                published = cast((reference + values).astype(F32), dtype)
                case["versions"].append({
                    "master": to_hex(master), "encoded": encoded.hex(),
                    "published": to_hex(published)})
            cases.append(case)
    # The checksum of one chunk and of another, mixed into a digest.
    digest = 0
    chunks = [(0, 0x0123456789ABCDEF, 7), (1, MASK64, 0), (5, 0, 2**40)]
    for number, checksum, version in chunks:
        digest += mix(mix((number + GOLDEN) & MASK64) ^
                      mix((checksum + GOLDEN) & MASK64) ^ version)
    return {"cases": cases, "digest": "%016x" % (digest & MASK64),
            "chunks": [["%016x" % word for word in chunk]
                       for chunk in chunks]}


def feedback_file():
    """Five steps of one node's sums, section 10; the third is not applied."""
    cases = []
    for bits, block, hadamard, rounding in (
            (4, 128, 0, "nearest"), (4, 128, 32, "nearest"),
            (8, 256, 0, "nearest"), (4, 64, 32, "stochastic")):
        spec = {"bits": bits, "block": block, "range": "sym",
                "hadamard": hadamard, "rounding": rounding}
        versions = [np.zeros(300, F32), np.zeros(300, F32)]
        applied = 0
        case = {"spec": wire_name(spec), "steps": []}
        for step in range(5):
            sums = normals(300, 90 + step)
            key = stochastic_key(1, job_key("gpt2"), 2, step, 0)
            y = (sums + versions[applied % 2]).astype(F32)
            encoded, values = encode(spec, key, 0, y)
            written = (y - values).astype(F32)
            versions[(applied + 1) % 2] = written
            is_applied = step != 2
            applied += is_applied
            case["steps"].append({
                "key": "%016x" % key, "sums": to_hex(sums),
                "encoded": encoded.hex(), "residual": to_hex(written),
                "applied": is_applied})
        cases.append(case)
    return {"cases": cases}


def random_file():
    cases = []
    for seed, job, tensor, step, hop in (
        (1, "gpt2", 2, 3, 0), (0, "", 0, 0, 0),
        (2**64 - 1, "a/b.c-d", 10**6, 2**40, 1)):
        key = stochastic_key(seed, job_key(job), tensor, step, hop)
        for cell in (0, 1, 2**33):
            c = cell_key(key, cell)
            cases.append({
                "seed": "%016x" % seed, "job": job, "tensor": tensor,
                "step": step, "hop": hop, "cell": cell, "key": "%016x" % key,
                "cell_key": "%016x" % c,
                "bits": to_hex(np.array([random_bits(c, i) for i in
                                         (0, 1, 2, 1000, 2047)], np.uint32))})
    return {"elements": [0, 1, 2, 1000, 2047], "cases": cases}


FILES = {"random.json": random_file, "convert.json": convert_file,
         "sum.json": sum_file, "norm.json": norm_file,
         "optimizer.json": optimizer_file, "codec.json": codec_file,
         "delta.json": delta_file, "feedback.json": feedback_file}


def main(arguments):
    if arguments not in ([], ["--update"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = []
    with np.errstate(all="ignore"):
        for name, compute in FILES.items():
            text = json.dumps(compute(), indent=1) + "\n"
            path = os.path.join(HERE, name)
            if arguments:
                with open(path, "w") as file:
                    file.write(text)
                continue
            with open(path) as file:
                if file.read() != text:
                    stale.append(name)
    for name in stale:
        print("%s is not what FORMAT.md says (generate.py --update)" % name)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
