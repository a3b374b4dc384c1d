"""A character model: an embedding of the last letters, a hidden layer, the next letter; then it writes by itself.

    python examples/characters.py [--small]
"""

import sys

import numpy as np

import minidl
from minidl import Tensor, data, nn, optim, training

RHYME = """one two buckle my shoe three four knock at the door five six pick up sticks seven eight lay them straight
nine ten a big fat hen eleven twelve dig and delve thirteen fourteen maids a courting fifteen sixteen maids in the
kitchen seventeen eighteen maids in waiting nineteen twenty my plates empty """.replace("\n", " ")
BEFORE = 8                                             # letters that are seen


def main(small):
    letters = sorted(set(RHYME))
    ids = np.array([letters.index(letter) for letter in RHYME])
    places = np.arange(len(ids) - BEFORE)
    before, after = ids[places[:, None] + np.arange(BEFORE)], ids[places + BEFORE]
    minidl.manual_seed(1)
    net = nn.Sequential(nn.Embedding(len(letters), 16), nn.Flatten(), nn.Linear(16 * BEFORE, 128), nn.GELU(),
                        nn.Linear(128, len(letters)))
    batches = data.DataLoader((before, after), 32, seed=1)
    last = training.fit(net, optim.AdamW(net.parameters(), lr=0.003), batches, batches, compiled=True, say=None,
                        epochs=15 if small else 40)[-1]
    text = RHYME[:BEFORE]
    with minidl.no_grad():
        while len(text) < 60:                          # the likeliest next letter, again and again
            seen = Tensor(np.array([[letters.index(letter) for letter in text[-BEFORE:]]]))
            text += letters[int(net(seen).argmax(1).item())]
    print(text)
    print(f"{len(letters)} letters, {last['test_accuracy']:.3f} of the next ones are right")


if __name__ == "__main__":
    main("--small" in sys.argv)
