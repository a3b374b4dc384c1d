"""REINFORCE (Williams 1992): a net balances a pole on a cart, 32 carts at a time.
Figure: how many of 100 steps the pole stands, after 40 updates."""

import numpy as np

import minidl
from minidl import Tensor, nn, optim

STEPS, CARTS = 100, 32


def moved(state, action):
    """The cart-pole of Barto, Sutton and Anderson (1983) 0.02 s later, and whether it still stands."""
    x, v, angle, turn = state.T
    force = np.where(action == 1, 10.0, -10.0)
    inner = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
    spin = (9.8 * np.sin(angle) - np.cos(angle) * inner) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
    speed = inner - 0.05 * spin * np.cos(angle) / 1.1
    state = np.stack([x + 0.02 * v, v + 0.02 * speed, angle + 0.02 * turn, turn + 0.02 * spin], 1).astype(np.float32)
    return state, (abs(state[:, 0]) < 2.4) & (abs(state[:, 2]) < 0.21)


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    rng = np.random.default_rng(0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)).to(device)
    adam = optim.Adam(policy.parameters(), lr=0.02)

    def update(states, actions, returns, alive):
        log_probs = policy(states).log_softmax(dim=-1)
        chosen = log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
        advantage = returns - (returns * alive).sum() / alive.sum()
        loss = -(chosen * advantage * alive).sum() / alive.sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss

    update = minidl.compile(update) if compiled else update
    for _ in range(41):
        state, stands = rng.uniform(-0.05, 0.05, (CARTS, 4)).astype(np.float32), np.ones(CARTS, bool)
        states, actions, alive = [], [], []
        for _ in range(STEPS):
            with minidl.no_grad():
                p = policy(Tensor(state, device=device)).softmax(dim=-1)[:, 1].cpu().numpy()
            action = (rng.random(CARTS) < p).astype(np.int64)
            states.append(state), actions.append(action), alive.append(stands.astype(np.float32))
            state, ok = moved(state, action)
            stands = stands & ok
        rewards = np.stack(alive)
        returns = rewards[::-1].cumsum(0)[::-1].copy()
        update(*(Tensor(each, device=device) for each in (np.stack(states), np.stack(actions), returns, rewards)))
    return float(rewards.sum(0).mean())
