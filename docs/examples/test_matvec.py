"""Is a matrix-vector product through einsum faster than a product and a sum?"""

import numpy as np
import pytest

N = 512


def weights(seed):
    return np.random.default_rng(seed).standard_normal((N, N), dtype=np.float32)


def vector(seed):
    return np.random.default_rng(seed).standard_normal(N, dtype=np.float32)


def einsum(w):
    return lambda x: np.einsum("ij,j->i", w, x)


def product_and_sum(w):
    return lambda x: (w * x).sum(axis=1)


def exact(w, x):
    return w.astype(np.float64) @ x


@pytest.mark.parametrize("ours", [einsum, product_and_sum])
def test_matvec(amk_pair, ours):
    amk_pair(ours.__name__, ours, product_and_sum, inputs=vector, weights=weights, reference=exact, bytes_moved=4 * N * N)
