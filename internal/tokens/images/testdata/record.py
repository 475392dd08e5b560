"""Records what vLLM and the processors of transformers make of images.

    python record.py > images.json

It runs with the packages vllm (0.32.0 wrote the file; no engine is started) and transformers that vLLM brings along.
The images are made here: their pixels are noise.
"""

import base64
import io
import json
import random
import sys

import numpy as np
import transformers
import vllm
from PIL import Image
from transformers.models.pixtral.image_processing_pixtral import PixtralImageProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from vllm.model_executor.models.pixtral import PixtralHFEncoderInfo
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media.image import ImageMediaIO

rnd = random.Random(7)
noise = np.random.default_rng(7)

MODEL = "org/model – ä"


def pixels(mode, width, height):
    deep = {"RGB": 3, "RGBA": 4, "LA": 2, "CMYK": 4, "YCbCr": 3}.get(mode, 1)
    data = noise.integers(0, 256, (height, width, deep), dtype=np.uint8)
    if mode == "1":
        return Image.fromarray(data[:, :, 0]).convert("1")
    if mode == "P":
        return Image.fromarray(data[:, :, 0]).convert("P")
    if mode == "I;16":
        return Image.fromarray(data[:, :, 0].astype(np.uint16) * 257)
    if deep == 1:
        return Image.fromarray(data[:, :, 0], mode)
    return Image.fromarray(data, mode)


def saved(mode, width, height, form, orientation=None, little=False, **options):
    image = pixels(mode, width, height)
    if orientation is not None:
        exif = Image.Exif()
        exif.endian = "<" if little else ">"
        exif[0x010E] = "a description"
        exif[0x0112] = orientation
        options["exif"] = exif
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def files():
    for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"):
        yield "PNG " + mode, saved(mode, 13, 7, "PNG")
    yield "PNG transparent RGB", saved("RGB", 5, 9, "PNG", transparency=(1, 2, 3))
    yield "PNG transparent P", saved("P", 5, 9, "PNG", transparency=3)
    for mode in ("RGB", "L", "CMYK"):
        yield "JPEG " + mode, saved(mode, 33, 17, "JPEG")
    yield "JPEG progressive", saved("RGB", 40, 24, "JPEG", progressive=True)
    for mode in ("RGB", "RGBA", "L"):
        yield "WebP lossy " + mode, saved(mode, 21, 11, "WEBP")
        yield "WebP lossless " + mode, saved(mode, 21, 11, "WEBP", lossless=True)
    for orientation in range(1, 10):
        yield f"PNG turned {orientation}", saved("RGB", 6, 4, "PNG", orientation)
        yield f"JPEG turned {orientation}", saved("RGB", 24, 16, "JPEG", orientation, little=True)
    yield "WebP turned", saved("RGB", 24, 16, "WEBP", 6)
    yield "WebP animated", saved("RGB", 12, 8, "WEBP", save_all=True, append_images=[pixels("RGB", 12, 8)])
    yield "PNG animated", saved("RGB", 12, 8, "PNG", save_all=True, append_images=[pixels("RGB", 12, 8)])
    yield "GIF", saved("P", 12, 8, "GIF")
    yield "BMP", saved("RGB", 12, 8, "BMP")
    yield "TIFF", saved("RGB", 12, 8, "TIFF")
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    yield "JPEG turned by a text", saved("RGB", 24, 16, "JPEG", xmp=xmp)
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_itxt("XML:com.adobe.xmp", xmp.decode())
    yield "PNG turned by a text", saved("RGB", 12, 8, "PNG", pnginfo=info)
    other = PngInfo()
    other.add_text("Title", "a title")
    yield "PNG with a text", saved("RGB", 12, 8, "PNG", pnginfo=other)
    whole = saved("RGB", 12, 8, "PNG")
    late = saved("RGB", 12, 8, "PNG", 6)
    at = late.index(b"eXIf") - 4
    size = int.from_bytes(late[at : at + 4], "big") + 12
    yield "PNG turned behind its pixels", whole[:-12] + late[at : at + size] + whole[-12:]
    yield "PNG of several pieces", saved("RGB", 300, 200, "PNG")


def read(name, data):
    media = ImageMediaIO().load_bytes(data)
    key = MultiModalHasher.hash_kwargs("blake3", model_id=MODEL, image=media)
    return {
        "name": name,
        "file": base64.b64encode(data).decode(),
        "key": key,
        "width": media.media.width,
        "height": media.media.height,
    }


def sides():
    fixed = [(1, 1), (28, 28), (27, 29), (224, 224), (14, 14), (42, 42), (70, 70), (640, 480), (1920, 1080), (3000, 40), (40, 3000),
             (4096, 4096), (1540, 1540), (1541, 1540), (6000, 31), (200, 1), (1, 200)]
    yield from fixed
    for _ in range(400):
        yield int(2 ** rnd.uniform(0, 13)), int(2 ** rnd.uniform(0, 13))


def qwen(config):
    """The number of tokens by a processor, None where it refuses the image."""
    processor = Qwen2VLImageProcessor(**config)
    merge = config["merge_size"]
    for width, height in sides():
        try:
            patches = processor.get_number_of_image_patches(height, width, {})
        except ValueError:
            patches = None
        yield [width, height, None if patches is None else patches // merge**2]


def processed(config):
    """The same by images that are processed."""
    processor = Qwen2VLImageProcessor(**config)
    for width, height in [(28, 28), (31, 57), (100, 300), (333, 222), (640, 480), (15, 1400)]:
        grid = processor(images=[pixels("RGB", width, height)], return_tensors="np")["image_grid_thw"][0]
        yield [width, height, int(np.prod(grid)) // config["merge_size"] ** 2]


class Config:
    def __init__(self, **values):
        self.__dict__.update(values)


def mistral(patch, merge, longest):
    """Columns and rows by vLLM, compared with the processor of transformers."""
    info = PixtralHFEncoderInfo.__new__(PixtralHFEncoderInfo)
    info.hf_config = Config(spatial_merge_size=merge)
    info.vision_config = Config(image_size=longest, patch_size=patch)
    processor = PixtralImageProcessor(size={"longest_edge": longest}, patch_size=patch * merge)
    for n, (width, height) in enumerate(sides()):
        try:
            columns, rows = info.get_patch_grid_size(image_width=width, image_height=height)
        except (ValueError, ZeroDivisionError):
            continue
        if columns * rows == 0:
            continue
        if n % 40 == 3 and width * height < 1 << 20:
            made = processor(images=[pixels("RGB", width, height)], return_tensors="np")["image_sizes"][0]
            assert [made[0] // (patch * merge), made[1] // (patch * merge)] == [rows, columns], (width, height, made)
        yield [width, height, columns, rows]


qwens = [
    {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2},
    {"min_pixels": 784, "max_pixels": 200704, "patch_size": 14, "merge_size": 2},
    {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "merge_size": 2},
]
json.dump(
    {
        "made_with": {"vllm": vllm.__version__, "transformers": transformers.__version__},
        "model": MODEL,
        "files": [read(name, data) for name, data in files()],
        "qwen": [{"config": c, "sizes": list(qwen(c)) + list(processed(c))} for c in qwens],
        "mistral": [{"patch": p, "merge": m, "longest": e, "sizes": list(mistral(p, m, e))} for p, m, e in [(14, 2, 1540), (16, 1, 1024)]],
    },
    sys.stdout,
    indent=None,
    separators=(",", ":"),
    ensure_ascii=False,
)
