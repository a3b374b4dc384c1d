"""A variational autoencoder of generated digits (Kingma and Welling 2014), trained by fit.
Figure: by how much the bound on the log-likelihood of an image rises."""

import minidl
from minidl import data, nn, optim, training
from minidl import ops as F


class VAE(nn.Module):
    def __init__(self, latent=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU())
        self.mu, self.logvar = nn.Linear(128, latent), nn.Linear(128, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, 784))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + minidl.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.decoder(z), mu, logvar


def elbo(outputs, images):
    logits, mu, logvar = outputs
    reconstruction = F.binary_cross_entropy_with_logits(logits, images.flatten(1), reduction="sum")
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
    return (reconstruction + kl) / len(images)


def main(device="cpu", compiled=False):
    minidl.manual_seed(0)
    images = data.load("synthetic-digits", "train", count=600).images.astype("float32") / 255
    train = data.DataLoader((images[:500], images[:500]), 50, device=device)
    test = data.DataLoader((images[500:], images[500:]), 100, shuffle=False, device=device)
    net = VAE().to(device)
    before = training.evaluate(net, test, loss=elbo)[0]
    adam = optim.Adam(net.parameters(), lr=3e-3)
    history = training.fit(net, adam, train, test, epochs=6, loss=elbo, compiled=compiled, say=None, progress=False)
    return before - history[-1]["test_loss"]
