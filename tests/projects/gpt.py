"""A transformer of two blocks learns to write a rhyme, letter by letter, and then does (Radford et al. 2018).
Figure: the share of letters that it writes as the rhyme has them."""

import math

import numpy as np

import minidl
from minidl import Tensor, nn, optim
from minidl import ops as F

TEXT = "one two buckle my shoe three four knock at the door five six pick up sticks seven eight lay them straight "
BLOCK = 16


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (each.view(n, t, self.heads, c // self.heads).transpose(1, 2) for each in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        mask = minidl.tril(minidl.ones(t, t, device=x.device))
        scores = scores.masked_fill(mask == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(n, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1, self.attention, self.ln2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, letters, width=32, heads=4, layers=2):
        super().__init__()
        self.token, self.position = nn.Embedding(letters, width), nn.Embedding(BLOCK, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, ids):
        x = self.token(ids) + self.position(minidl.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    letters = sorted(set(TEXT))
    ids = np.array([letters.index(letter) for letter in TEXT])
    net = GPT(len(letters)).to(device)
    adamw = optim.AdamW(net.parameters(), lr=0.003)

    def step(x, y):
        logits = net(x)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        return loss

    step, rng = minidl.compile(step) if compiled else step, np.random.default_rng(0)
    for _ in range(200):
        places = rng.integers(0, len(ids) - BLOCK, 16)[:, None] + np.arange(BLOCK)
        step(Tensor(ids[places], device=device), Tensor(ids[places + 1], device=device))
    made = list(ids[:BLOCK])
    with minidl.no_grad():
        while len(made) < len(ids):
            logits = net(Tensor([made[-BLOCK:]], dtype="int64", device=device))
            made.append(logits[0, -1].argmax().item())
    return float(np.mean(np.array(made) == ids))
