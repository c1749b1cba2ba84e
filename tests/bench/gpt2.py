"""The tensors of GPT-2's four published sizes, in the order in which a forward
pass uses them; the head is tied to `wte`.

Source: the inventory of OpenAI's released models (12 L + 4 tensors), with the
corrected parameter counts of their repository, not those of the first paper.
"""

from typing import Dict, NamedTuple, Tuple

Shape = Tuple[int, ...]

_VOCABULARY = 50257
_POSITIONS = 1024


class Size(NamedTuple):
    layers: int
    width: int
    elements: int  # published; checked against the list


SIZES = {
    "gpt2": Size(12, 768, 124_439_808),
    "gpt2-medium": Size(24, 1024, 354_823_168),
    "gpt2-large": Size(36, 1280, 774_030_080),
    "gpt2-xl": Size(48, 1600, 1_557_611_200),
}


def inventory(name: str) -> Dict[str, Shape]:
    """Name -> shape of each tensor of a size in SIZES."""
    size = SIZES[name]
    d = size.width
    shapes: Dict[str, Shape] = {"wte": (_VOCABULARY, d), "wpe": (_POSITIONS, d)}
    for layer in range(size.layers):
        for part, shape in (
                ("ln_1.g", (d,)), ("ln_1.b", (d,)),
                ("attn.c_attn.w", (d, 3 * d)), ("attn.c_attn.b", (3 * d,)),
                ("attn.c_proj.w", (d, d)), ("attn.c_proj.b", (d,)),
                ("ln_2.g", (d,)), ("ln_2.b", (d,)),
                ("mlp.c_fc.w", (d, 4 * d)), ("mlp.c_fc.b", (4 * d,)),
                ("mlp.c_proj.w", (4 * d, d)), ("mlp.c_proj.b", (d,))):
            shapes["h%d.%s" % (layer, part)] = shape
    shapes["ln_f.g"] = shapes["ln_f.b"] = (d,)
    total = count(shapes)
    assert total == size.elements, (name, total)
    return shapes


def even(elements: int) -> Dict[str, Shape]:
    """A model of so many elements without a name: matrices of at most 4 Mi
    elements."""
    most = 4 << 20
    return {"t%d" % k: (min(most, elements - start),)
            for k, start in enumerate(range(0, elements, most))}


def count(shapes: Dict[str, Shape]) -> int:
    """How many elements they have."""
    total = 0
    for shape in shapes.values():
        elements = 1
        for extent in shape:
            elements *= extent
        total += elements
    return total
