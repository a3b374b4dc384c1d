"""A generator and a discriminator of convolutions, trained in turns (Radford et al. 2015), on generated digits.
Figure: the share of made pixels' mean and deviation that is right."""

import minidl
from minidl import data, nn, optim


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    loader = data.DataLoader(data.load("synthetic-digits", "train", count=640), batch_size=32, mean=0.5, std=0.5,
                             device=device)
    generator = nn.Sequential(nn.ConvTranspose2d(16, 16, 7), nn.BatchNorm2d(16), nn.ReLU(),
                              nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                              nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1), nn.Tanh()).to(device)
    discriminator = nn.Sequential(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
                                  nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Flatten(),
                                  nn.Linear(16 * 7 * 7, 1)).to(device)
    criterion = nn.BCEWithLogitsLoss()
    opt_g = optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    opt_d = optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))

    def step(real):
        n = real.shape[0]
        fake = generator(minidl.randn(n, 16, 1, 1, device=device))
        opt_d.zero_grad()
        loss_d = criterion(discriminator(real), minidl.ones(n, 1, device=device))
        loss_d = loss_d + criterion(discriminator(fake.detach()), minidl.zeros(n, 1, device=device))
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = criterion(discriminator(fake), minidl.ones(n, 1, device=device))
        loss_g.backward()
        opt_g.step()
        return loss_d, loss_g

    step = minidl.compile(step) if compiled else step
    for epoch in range(3):
        loader.set_epoch(epoch)
        for real, _ in loader:
            step(minidl.Tensor(real, device=device))
    with minidl.no_grad():
        made = generator(minidl.randn(100, 16, 1, 1, device=device))
    real = minidl.Tensor(next(iter(loader))[0])
    return 1 - abs(made.mean().item() - real.mean().item()) - abs(made.std().item() - real.std().item())
