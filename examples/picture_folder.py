"""A folder of pictures, one folder per class: loaded, split by a seed, and told apart. It needs the extra `image`.

    python examples/picture_folder.py [--small]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import minidl
from minidl import data, nn, optim, training

SHAPES = {"disc": ImageDraw.ImageDraw.ellipse, "box": ImageDraw.ImageDraw.rectangle, "bar": ImageDraw.ImageDraw.line}


def draw(folder, count):
    """So many pictures of each shape, of several sizes and colours: folder/disc/000.png, ..."""
    random = np.random.default_rng(0)
    for shape, pen in SHAPES.items():
        (folder / shape).mkdir()
        for i in range(count):
            width, height = random.integers(40, 60, 2).tolist()
            left, top = random.integers(2, 15, 2).tolist()
            ink, paper = (tuple(random.integers(low, low + 100, 3).tolist()) for low in (0, 155))
            picture = Image.new("RGB", (width, height), paper)
            given = {"width": 4} if shape == "bar" else {}
            pen(ImageDraw.Draw(picture), (left, top, left + 22, top + 22), fill=ink, **given)
            picture.save(folder / shape / f"{i:03}.png")


def main(small):
    with tempfile.TemporaryDirectory() as name:
        draw(Path(name), 60 if small else 300)
        pictures = data.from_folder(name, size=32)     # cut and scaled to 32x32
        train, test = data.random_split(pictures, [0.8, 0.2], seed=1)
    print(f"{len(train)} training and {len(test)} test pictures of {', '.join(pictures.classes)}")
    mean, std = data.channel_statistics(train)
    batches = data.DataLoader(train, 20, seed=1, mean=mean, std=std, augment=data.Augment(crop=3, flip=True))
    tests = data.DataLoader(test, 100, shuffle=False, mean=mean, std=std)
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Flatten(), nn.Linear(400, len(pictures.classes)))
    sgd = optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    training.fit(net, sgd, batches, tests, epochs=30 if small else 40, say=None)
    print(f"test accuracy {training.evaluate(net, tests)[1]:.3f}")


if __name__ == "__main__":
    main("--small" in sys.argv)
