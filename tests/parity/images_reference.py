#!/usr/bin/python3
"""Makes the expected images with Pillow and torchvision, for images_parity_test.cpp.

    images_reference.py decode FOLDER    files of every kind, and for each NAME the pixels as Pillow decodes them
    images_reference.py turned FOLDER    an orientation in every place of a file that can have one, and the pixels as Pillow turns them
    images_reference.py resize FOLDER    IMAGE.WxH: a file resized with BILINEAR
    images_reference.py crop FOLDER      IMAGE.X.Y.W.H.WxH: a part of it, resized
    images_reference.py colour FOLDER    IMAGE.KIND.FACTOR: Pillow's (and torchvision's) colour changes
    images_reference.py evaluate FOLDER  IMAGE.SHORTER.WxH: torchvision's Resize, CenterCrop, ToTensor and Normalize
    images_reference.py folder FOLDER    a tree of files; samples.txt: label and path as torchvision's ImageFolder lists them
    images_reference.py draws FOLDER     draws.txt: means and deviations of torchvision's random draws

Pixels are in FILE.pixels: width and height, little-endian 32 bits, then three bytes per pixel; floats are in FILE.floats.
"""
import os
import struct
import sys
import zlib

import numpy as np
from PIL import Image, ImageEnhance, ImageOps


def sample(width, height, seed=1):
    noise = np.random.RandomState(seed).randint(0, 40, (height, width, 3))
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 255 // max(1, width - 1), np.where((x // 9 + y // 5) % 2 == 0, 190, y % 256), x * y % 216], -1)
    return Image.fromarray(np.clip(pixels + noise - 20, 0, 255).astype("uint8"))


def keep(path, image):
    image = image.convert("RGB")
    with open(path + ".pixels", "wb") as f:
        f.write(struct.pack("<II", *image.size) + image.tobytes())


def deep_png(path, samples):
    """Writes a PNG with 16 bits per sample, which Pillow cannot write. `samples`: [height, width, 1 or 3]"""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, channels = samples.shape
    rows = b"".join(b"\0" + samples[y].astype(">u2").tobytes() for y in range(height))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2 if channels == 3 else 0, 0, 0, 0)) +
                chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def exif_data(orientation, kind=3, count=1, big=False):
    """EXIF with only the orientation tag, with `count` values of this type, of which the first is the orientation."""
    order = ">" if big else "<"
    sizes = {1: "B", 2: "c", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I"}
    values = b"".join(struct.pack(order + sizes[kind], orientation if i == 0 else 3) for i in range(count))
    inline = values.ljust(4, b"\0") if len(values) <= 4 else struct.pack(order + "I", 26)
    return ((b"MM\0*" if big else b"II*\0") + struct.pack(order + "IH", 8, 1) + struct.pack(order + "HHI", 0x0112, kind, count) + inline +
            bytes(4) + (values if len(values) > 4 else b""))


def write_turned(folder):
    """Writes an orientation in every place of JPEG and PNG that can have one, and the pixels as Pillow turns them."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def profile(data):
        return b"\nexif\n%8d\n" % len(data) + b"\n".join(data.hex().encode()[i:i + 72] for i in range(0, 2 * len(data), 72)) + b"\n"

    image = sample(19, 13)
    stored = os.path.join(folder, "stored")
    image.save(stored + ".png")
    image.save(stored + ".jpg", quality=90)
    with open(stored + ".png", "rb") as f:
        png = f.read()
    with open(stored + ".jpg", "rb") as f:
        jpeg = f.read()
    intro, exif = b"Exif\0\0", exif_data(6)
    attribute, element = b'<x tiff:Orientation="8"/>', b"<x><tiff:Orientation>5</tiff:Orientation></x>"
    nothing = b"MM\0*\0\0\0\x08\0\0\0\0\0\0"
    raw, xmp = b"Raw profile type exif\0", b"XML:com.adobe.xmp\0"
    places = {
        "exif": chunk(b"eXIf", exif), "exif-big": chunk(b"eXIf", exif_data(6, big=True)),
        "exif-twice": chunk(b"eXIf", exif_data(3)) + chunk(b"eXIf", exif), "exif-text": chunk(b"tEXt", b"exif\0" + intro + exif),
        "profile-text": chunk(b"tEXt", raw + profile(intro + exif)), "profile-packed": chunk(b"zTXt", raw + b"\0" + zlib.compress(profile(intro + exif))),
        "profile-itxt": chunk(b"iTXt", raw + b"\0\0\0\0" + profile(intro + exif)),
        "profile-itxt-packed": chunk(b"iTXt", raw + b"\1\0\0\0" + zlib.compress(profile(intro + exif))),
        "other-profile": chunk(b"tEXt", b"Raw profile type APP1\0" + profile(intro + exif)),
        "profile-exif": chunk(b"tEXt", raw + profile(intro + exif_data(3))) + chunk(b"eXIf", exif),
        "xmp-attribute": chunk(b"iTXt", xmp + b"\0\0\0\0" + attribute), "xmp-element": chunk(b"iTXt", xmp + b"\0\0\0\0" + element),
        "xmp-packed": chunk(b"iTXt", xmp + b"\1\0\0\0" + zlib.compress(attribute)), "xmp-text": chunk(b"tEXt", xmp + attribute),
        "xmp-ztxt": chunk(b"zTXt", xmp + b"\0" + zlib.compress(element)), "xmp-quotes": chunk(b"tEXt", xmp + b"<x tiff:Orientation='8'/>"),
        "xmp-exif": chunk(b"tEXt", xmp + attribute) + chunk(b"eXIf", exif), "xmp-exif-1": chunk(b"tEXt", xmp + attribute) + chunk(b"eXIf", exif_data(1)),
        "xmp-no-tag": chunk(b"eXIf", nothing) + chunk(b"tEXt", xmp + attribute), "xmp-twice": chunk(b"tEXt", xmp + attribute) + chunk(b"tEXt", xmp + element),
        "comment": chunk(b"tEXt", b"Comment\0" + attribute)}
    for kind in 1, 3, 4, 6, 8, 9, 13:
        for count in 1, 2, 3, 5:
            places[f"type{kind}x{count}"] = chunk(b"eXIf", exif_data(6, kind, count, big=count == 2))
    for value in 0, 1, 2, 3, 4, 5, 7, 8, 9, 255:
        places[f"value{value}"] = chunk(b"eXIf", exif_data(value))
    for name, chunks in places.items():
        for where, at in ("before", png.index(b"IDAT") - 4), ("behind", png.rindex(b"IEND") - 4):
            with open(os.path.join(folder, f"{name}-{where}.png"), "wb") as f:
                f.write(png[:at] + chunks + png[at:])

    def marker(data):
        return b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data
    adobe = b"http://ns.adobe.com/xap/1.0/\0"
    for name, markers in (("exif", marker(intro + exif)), ("xmp", marker(adobe + attribute)), ("xmp-exif", marker(adobe + attribute) + marker(intro + exif)),
                          ("exif-xmp", marker(intro + nothing) + marker(adobe + attribute)), ("long", marker(intro + exif_data(6, 3, 5)))):
        with open(os.path.join(folder, f"{name}.jpg"), "wb") as f:
            f.write(jpeg[:2] + markers + jpeg[2:])
    for name in os.listdir(folder):
        keep(os.path.join(folder, name), ImageOps.exif_transpose(Image.open(os.path.join(folder, name))))


def write_files(folder):
    def path(name):
        return os.path.join(folder, name)
    for width, height in (1, 1), (17, 13), (64, 48), (333, 250):
        image = sample(width, height)
        size = f"{width}x{height}"
        for sampling in 0, 1, 2:
            for quality in 30, 75, 95:
                for progressive in False, True:
                    image.save(path(f"{size}-{sampling}-{quality}-{int(progressive)}.jpg"), quality=quality,
                               subsampling=sampling, progressive=progressive)
        image.convert("L").save(path(f"{size}-grey.jpg"))
        image.convert("CMYK").save(path(f"{size}-cmyk.jpg"))
        alpha = Image.fromarray((np.arange(width * height).reshape(height, width) % 256).astype("uint8"))
        for mode in "1", "L", "LA", "P", "RGB", "RGBA":
            other = image.convert(mode)
            if "A" in mode:
                other.putalpha(alpha)
            other.save(path(f"{size}-{mode}.png"))
        for colours in 2, 4, 16:  # 1, 2 and 4 bits per pixel
            image.quantize(colours).save(path(f"{size}-P{colours}.png"))
        image.quantize(16).save(path(f"{size}-P-transparent.png"), transparency=3)
        image.save(path(f"{size}-transparent.png"), transparency=(1, 2, 3))
        deep_png(path(f"{size}-deep.png"), np.asarray(image).astype("uint16") * 256 + 77)
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[0x0112] = orientation
            image.save(path(f"{size}-turned{orientation}.jpg"), exif=exif, subsampling=2)
            image.save(path(f"{size}-turned{orientation}.png"), exif=exif)
    for name in os.listdir(folder):
        keep(path(name), ImageOps.exif_transpose(Image.open(path(name))))
    # Pillow clips; the expected value is the upper byte.
    grey = np.arange(64 * 48).reshape(48, 64, 1) * 21 % 65536
    deep_png(path("deep-grey.png"), grey)
    keep(path("deep-grey.png"), Image.fromarray((grey[:, :, 0] // 256).astype("uint8")))


def write_resized(folder):
    random = np.random.RandomState(7)
    for i in range(60):
        width, height, to_width, to_height = (int(v) for v in random.randint(1, 300, 4))
        image = sample(width, height, i)
        name = os.path.join(folder, f"{i}.png")
        image.save(name)
        keep(f"{name}.{to_width}x{to_height}", image.resize((to_width, to_height), Image.BILINEAR))


def write_crops(folder):
    random = np.random.RandomState(8)
    image = sample(500, 375)
    name = os.path.join(folder, "crop.jpg")
    image.save(name, quality=90, subsampling=2)
    image = Image.open(name).convert("RGB")
    for _ in range(60):
        x, y = int(random.randint(0, 400)), int(random.randint(0, 300))
        width, height = int(random.randint(1, 500 - x + 1)), int(random.randint(1, 375 - y + 1))
        to_width, to_height = (int(v) for v in random.randint(1, 256, 2))
        keep(f"{name}.{x}.{y}.{width}.{height}.{to_width}x{to_height}",
             image.crop((x, y, x + width, y + height)).resize((to_width, to_height), Image.BILINEAR))


def adjust_hue(image, factor):
    """torchvision's function for PIL images."""
    h, s, v = image.convert("HSV").split()
    moved = (np.asarray(h).astype("int64") + int(factor * 255)) % 256
    return Image.merge("HSV", (Image.fromarray(moved.astype("uint8"), "L"), s, v)).convert("RGB")


def write_colours(folder):
    image = Image.fromarray(np.random.RandomState(9).randint(0, 256, (200, 300, 3)).astype("uint8"))
    image.paste(sample(150, 100))
    name = os.path.join(folder, "colour.png")
    image.save(name)
    for factor in 0.0, 0.3, 0.6, 0.9999, 1.0, 1.0001, 1.4, 2.7:
        for kind, enhancer in ("brightness", ImageEnhance.Brightness), ("contrast", ImageEnhance.Contrast), \
                              ("saturation", ImageEnhance.Color):
            keep(f"{name}.{kind}.{factor}", enhancer(image).enhance(factor))
    for factor in -0.5, -0.21, -0.001, 0.0, 0.1, 0.37, 0.5:
        keep(f"{name}.hue.{factor}", adjust_hue(image, factor))


def write_evaluated(folder):
    from torchvision import transforms
    random = np.random.RandomState(10)
    for i, (width, height) in enumerate(((500, 375), (375, 500), (64, 64), (33, 257), (700, 90), (224, 225))):
        image = sample(width, height, i)
        name = os.path.join(folder, f"{i}.jpg")
        image.save(name, quality=90)
        for _ in range(4):
            shorter, to_width, to_height = (int(v) for v in random.randint(20, 300, 3))
            steps = transforms.Compose([
                transforms.Resize(shorter), transforms.CenterCrop((to_height, to_width)), transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
            values = steps(Image.open(name).convert("RGB"))
            with open(f"{name}.{shorter}.{to_width}x{to_height}.floats", "wb") as f:
                f.write(values.contiguous().numpy().tobytes())


def write_folder(folder):
    from torchvision.datasets import ImageFolder
    root = os.path.join(folder, "tree")
    for name in ("b/2.png", "b/10.JPG", "B/x.jpeg", "a/z.png", "a/sub/1.png", "a/sub-1/0.png", "a/sub.d/0.png", "a/sub/deep/7.png",
                 ".hidden/1.png", "\u00e9t\u00e9/\u4f60.png", "c d/e f.png", "c d/note.txt", "outside.png"):
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").close()
    os.symlink("../b", os.path.join(root, "a", "link"))
    with open(os.path.join(folder, "samples.txt"), "w") as f:
        f.writelines(f"{label} {path}\n" for path, label in ImageFolder(root).samples)


def write_draws(folder):
    import torch
    from torchvision import transforms
    torch.manual_seed(1)
    with open(os.path.join(folder, "draws.txt"), "w") as f:
        for width, height in (500, 375), (32, 32), (300, 40), (40, 300):
            image = sample(width, height)
            drawn = np.array([transforms.RandomResizedCrop.get_params(image, (0.08, 1), (3 / 4, 4 / 3))
                              for _ in range(4000)], dtype="float64")  # top, left, height, width
            f.write(f"crop {width} {height} " + " ".join(str(v) for v in (*drawn.mean(0), *drawn.std(0))) + "\n")
            blank = torch.zeros(3, height, width)
            drawn = [transforms.RandomErasing.get_params(blank, (0.02, 0.33), (0.3, 3.3), [0.0]) for _ in range(4000)]
            drawn = np.array([d[:4] for d in drawn if d[2:4] != (height, width)], dtype="float64")
            f.write(f"erase {width} {height} " + " ".join(str(v) for v in (*drawn.mean(0), *drawn.std(0))) + "\n")


{"evaluate": write_evaluated, "folder": write_folder, "draws": write_draws, "decode": write_files, "turned": write_turned, "resize": write_resized, "crop": write_crops, "colour": write_colours}[sys.argv[1]](sys.argv[2])
