"""Products and sums named by letters, as permutations, sums and one matrix product for each pair."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ...core.tensor import Tensor
from ..common.op import tensor
from .basic import matmul, mul
from .basic import sum as sum_of
from .shapes import reshape, transpose

__all__ = ["einsum", "outer"]


def outer(x: Tensor, y: Tensor) -> Tensor:
    """All products of two vectors' values: x (n,), y (m,) -> (n,m). Raises ValueError for other shapes.

    >>> outer(Tensor([1.0, 2.0]), Tensor([3.0, 4.0])).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    if x.ndim != 1 or y.ndim != 1:
        raise ValueError(f"outer: x has shape {x.shape} and y has shape {y.shape} but both must have 1 axis; "
                         "see .flatten()")
    product = matmul if x.dtype.kind == "f" else mul   # whose gradients are products too, not sums of arrays
    return product(reshape(x, shape=(x.shape[0], 1)), reshape(y, shape=(1, y.shape[0])))


def einsum(equation: str, *tensors: Tensor) -> Tensor:
    """Sums of products: "ij,jk->ik" is x @ y. A letter per axis; letters that are not in the result are summed over.

    Without "->" the result has the letters that occur once, in alphabetical order. Several Tensors are
    multiplied from left to right. Raises ValueError for an ellipsis, a letter that occurs twice in one term, terms
    that do not fit the Tensors, and sizes of a letter that differ.

    >>> x, y = Tensor([[1.0, 2.0], [3.0, 4.0]]), Tensor([10.0, 100.0])
    >>> einsum("ij,j->i", x, y).tolist(), einsum("ij->ji", x).tolist()
    ([210.0, 430.0], [[1.0, 3.0], [2.0, 4.0]])
    """
    terms, result = _read(equation, tuple(tensor("einsum", t) for t in tensors))
    tensors = tuple(t if t.dtype.kind == "f" else sum_of(t, axis=()) for t in tensors)     # integers as int64
    x, have = tensors[0], terms[0]
    for at, (y, other) in enumerate(zip(tensors[1:], terms[1:], strict=True), 2):
        wanted = set(result).union(*terms[at:])        # by what is still to come
        x, have = _product(x, have, y, other, wanted)
    return _ordered(*_summed(x, have, set(result)), result)


def _read(equation: str, tensors: tuple[Tensor, ...]) -> tuple[list[str], str]:
    """The letters of each Tensor, and of the result."""
    text = equation.replace(" ", "") if isinstance(equation, str) else "?"
    if not re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)*(->[A-Za-z]*)?", text):
        raise ValueError(f"einsum: {equation!r} is not a list of terms of letters, as in 'ij,jk->ik'; it takes no "
                         "ellipsis: name each axis")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if not arrow:
        result = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    if [len(term) for term in terms] != [t.ndim for t in tensors]:
        raise ValueError(f"einsum: {equation!r} does not fit Tensors of shapes "
                         f"{', '.join(str(t.shape) for t in tensors) or 'none'}; give a letter for each axis")
    for term in (*terms, result):
        if len(set(term)) < len(term):
            raise ValueError(f"einsum: {term!r} names a letter twice, and diagonals are not computed; name each once")
    sizes: dict[str, int] = {}
    for term, t in zip(terms, tensors, strict=True):
        for letter, n in zip(term, t.shape, strict=True):
            if sizes.setdefault(letter, n) != n:
                raise ValueError(f"einsum: {letter!r} has size {sizes[letter]} and size {n} in {equation!r}; "
                                 "make them equal")
    if not set(result) <= sizes.keys():
        raise ValueError(f"einsum: the result {result!r} has letters that no term has; take them out")
    return terms, result


def _summed(x: Tensor, have: str, wanted: Iterable[str]) -> tuple[Tensor, str]:
    """x without the letters that are not in the result, which are summed over."""
    gone = tuple(i for i, letter in enumerate(have) if letter not in wanted)
    return (sum_of(x, axis=gone) if gone else x), "".join(letter for letter in have if letter in wanted)


def _ordered(x: Tensor, have: str, order: str) -> Tensor:
    return x if have == order else transpose(x, axes=tuple(map(have.index, order)))


def _product(x: Tensor, of_x: str, y: Tensor, of_y: str, wanted: set[str]) -> tuple[Tensor, str]:
    """One product of matrices: (both, only x, summed) @ (both, summed, only y); these are the kinds of letters."""
    x, of_x = _summed(x, of_x, wanted | set(of_y))
    y, of_y = _summed(y, of_y, wanted | set(of_x))
    both = "".join(letter for letter in of_x if letter in of_y and letter in wanted)
    summed = "".join(letter for letter in of_x if letter in of_y and letter not in wanted)
    only_x, only_y = ("".join(letter for letter in term if letter not in both + summed) for term in (of_x, of_y))
    sizes = dict(zip(of_x + of_y, x.shape + y.shape, strict=True))
    b, i, j, k = ([sizes[letter] for letter in letters] for letters in (both, only_x, summed, only_y))
    z = matmul(reshape(_ordered(x, of_x, both + only_x + summed), shape=tuple(map(math.prod, (b, i, j)))),
               reshape(_ordered(y, of_y, both + summed + only_y), shape=tuple(map(math.prod, (b, j, k)))))
    return reshape(z, shape=(*b, *i, *k)), both + only_x + only_y
