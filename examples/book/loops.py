"""The loop nests of PMPP's chapter 16 in plain Python, with the book's names; figures are those of the 3rd edition.

    python examples/book/loops.py

Arrays are NumPy's, and their sizes come with them. It compares what each nest computes of a small layer with minidl.
"""

import numpy as np

from minidl import Tensor, ops


def sizes(X, W):
    """C, M, K, H_out, W_out of maps X (..., C, H, W) and filters W (M, C, K, K)."""
    M, C, K, _ = W.shape
    return C, M, K, X.shape[-2] - K + 1, X.shape[-1] - K + 1


def fig16_4(X, W):
    """Forward, one image: X (C, H, W), W (M, C, K, K) -> Y (M, H_out, W_out)."""
    C, M, K, H_out, W_out = sizes(X, W)
    Y = np.empty((M, H_out, W_out))
    for m in range(M):                     # for each output feature map
        for h in range(H_out):             # for each output element
            for w in range(W_out):
                Y[m, h, w] = 0
                for c in range(C):         # sum over all input feature maps
                    for p in range(K):     # KxK filter
                        for q in range(K):
                            Y[m, h, w] += X[c, h + p, w + q] * W[m, c, p, q]
    return Y


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def fig16_5(Y, b, K):
    """Subsampling, one image: Y (M, H, W), b (M,) -> S (M, H / K, W / K), means of K x K with bias and sigmoid."""
    M, H, W = Y.shape
    S = np.empty((M, H // K, W // K))
    for m in range(M):
        for h in range(H // K):
            for w in range(W // K):
                S[m, h, w] = 0
                for p in range(K):         # loop over KxK input samples
                    for q in range(K):
                        S[m, h, w] = S[m, h, w] + Y[m, K * h + p, K * w + q] / (K * K)
                S[m, h, w] = sigmoid(S[m, h, w] + b[m])
    return S


def fig16_8(dE_dY, W):
    """dE/dX, one image: dE_dY (M, H_out, W_out) -> (C, H, W). Each output adds to the pixels that it was made of."""
    M, C, K, _ = W.shape
    _, H_out, W_out = dE_dY.shape
    dE_dX = np.zeros((C, H_out + K - 1, W_out + K - 1))
    for m in range(M):
        for h in range(H_out):
            for w in range(W_out):
                for c in range(C):
                    for p in range(K):
                        for q in range(K):
                            dE_dX[c, h + p, w + q] += dE_dY[m, h, w] * W[m, c, p, q]
    return dE_dX


def fig16_10_4th(dE_dY, W):
    """The same in the 4th edition: each pixel collects its terms, so all pixels can be computed at once."""
    M, C, K, _ = W.shape
    _, H_out, W_out = dE_dY.shape
    H, width = H_out + K - 1, W_out + K - 1
    dE_dX = np.zeros((C, H, width))
    for m in range(M):
        for h in range(H):
            for w in range(width):
                for c in range(C):
                    for p in range(K):
                        for q in range(K):
                            if h - p >= 0 and w - q >= 0 and h - p < H_out and w - q < W_out:
                                dE_dX[c, h, w] += dE_dY[m, h - p, w - q] * W[m, c, p, q]
    return dE_dX


def fig16_9(dE_dY, X, K):
    """dE/dW, one image: dE_dY (M, H_out, W_out), X (C, H, W) -> (M, C, K, K)."""
    M, H_out, W_out = dE_dY.shape
    dE_dW = np.zeros((M, len(X), K, K))
    for m in range(M):
        for h in range(H_out):
            for w in range(W_out):
                for c in range(len(X)):
                    for p in range(K):
                        for q in range(K):
                            dE_dW[m, c, p, q] += X[c, h + p, w + q] * dE_dY[m, h, w]
    return dE_dW


def dE_dW_of_a_batch(dE_dY, X, K):
    """dE/dW, a mini-batch: the sum over the images, which the book leaves out."""
    dE_dW = 0
    for n in range(len(X)):
        dE_dW = dE_dW + fig16_9(dE_dY[n], X[n], K)
    return dE_dW


def fig16_10(X, W):
    """Forward, a mini-batch: X (N, C, H, W), W (M, C, K, K) -> Y (N, M, H_out, W_out)."""
    C, M, K, H_out, W_out = sizes(X, W)
    Y = np.empty((len(X), M, H_out, W_out))
    for n in range(len(X)):                # for each sample in the mini-batch
        for m in range(M):
            for h in range(H_out):
                for w in range(W_out):
                    Y[n, m, h, w] = 0
                    for c in range(C):
                        for p in range(K):
                            for q in range(K):
                                Y[n, m, h, w] += X[n, c, h + p, w + q] * W[m, c, p, q]
    return Y


def parallel_for(count):
    """The numbers below count in any order: what may run in parallel must not depend on it."""
    return np.random.default_rng().permutation(count)


def fig16_11(X, W):
    """Forward, a mini-batch, with the loops that may run in parallel: each iteration writes another element."""
    C, M, K, H_out, W_out = sizes(X, W)
    Y = np.empty((len(X), M, H_out, W_out))
    for n in parallel_for(len(X)):
        for m in parallel_for(M):
            for h in parallel_for(H_out):
                for w in parallel_for(W_out):
                    Y[n, m, h, w] = 0
                    for c in range(C):
                        for p in range(K):
                            for q in range(K):
                                Y[n, m, h, w] += X[n, c, h + p, w + q] * W[m, c, p, q]
    return Y


def fig16_16(X, K):
    """The unrolled matrix of one image X (C, H, W), with a row per output: (H_out * W_out, C * K * K)."""
    C, H, W = X.shape
    H_out, W_out = H - K + 1, W - K + 1
    X_unroll = np.empty((H_out * W_out, C * K * K))
    for c in range(C):
        w_base = c * (K * K)
        for p in range(K):
            for q in range(K):
                for h in range(H_out):
                    for w in range(W_out):
                        w_unroll = w_base + p * K + q
                        h_unroll = h * W_out + w
                        X_unroll[h_unroll, w_unroll] = X[c, h + p, w + q]
    return X_unroll


def fig16_17_4th(X, K):
    """The same in the 4th edition, with a column per output: (C * K * K, H_out * W_out)."""
    C, H, W = X.shape
    H_out, W_out = H - K + 1, W - K + 1
    X_unroll = np.empty((C * K * K, H_out * W_out))
    for c in range(C):
        w_base = c * (K * K)
        for p in range(K):
            for q in range(K):
                for h in range(H_out):
                    h_unroll = w_base + p * K + q
                    for w in range(W_out):
                        w_unroll = h * W_out + w
                        X_unroll[h_unroll, w_unroll] = X[c, h + p, w + q]
    return X_unroll


def fig16_15(X, W):
    """Forward, a mini-batch, by one product per image: X (N, C, H, W), W (M, C, K, K) -> Y (N, M, H_out, W_out)."""
    C, M, K, H_out, W_out = sizes(X, W)
    W_unroll = W.reshape(M, C * K * K)
    Y = np.empty((len(X), M, H_out * W_out))
    for n in range(len(X)):
        X_unrolled = fig16_16(X[n], K)
        Y[n] = W_unroll @ X_unrolled.T
    return Y.reshape(len(X), M, H_out, W_out)


def beside_minidl():
    """(figure, its result, minidl's) of each nest, for one small layer."""
    rng = np.random.default_rng(0)
    K, X, W = 3, rng.standard_normal((2, 3, 6, 5)), rng.standard_normal((4, 3, 3, 3))
    b, dE_dY = rng.standard_normal(4), rng.standard_normal((2, 4, 4, 3))
    x, w = Tensor(X, requires_grad=True), Tensor(W, requires_grad=True)
    y = ops.conv2d(x, w)
    y.backward(Tensor(dE_dY))
    Y, dX, dW = y.numpy(), x.grad.numpy(), w.grad.numpy()
    S = ops.sigmoid(ops.avg_pool2d(y, size=2) + Tensor(b.reshape(4, 1, 1))).numpy()
    unrolled = ops.conv2d(x, Tensor(np.eye(27).reshape(27, 3, 3, 3))).numpy().reshape(2, 27, -1)
    yield "Fig. 16.4", fig16_4(X[0], W), Y[0]
    yield "Fig. 16.5", fig16_5(Y[0], b, 2), S[0]
    yield "Fig. 16.8", fig16_8(dE_dY[0], W), dX[0]
    yield "Fig. 16.10 of the 4th edition", fig16_10_4th(dE_dY[0], W), dX[0]
    yield "Fig. 16.9, a batch", dE_dW_of_a_batch(dE_dY, X, K), dW
    yield "Fig. 16.10", fig16_10(X, W), Y
    yield "Fig. 16.11", fig16_11(X, W), Y
    yield "Fig. 16.15", fig16_15(X, W), Y
    yield "Fig. 16.16", fig16_16(X[0], K), unrolled[0].T
    yield "Fig. 16.17 of the 4th edition", fig16_17_4th(X[0], K), unrolled[0]


if __name__ == "__main__":
    for name, got, expected in beside_minidl():
        print(f"{name}: {got.shape}, at most {np.abs(got - expected).max():.0e} from minidl's")
