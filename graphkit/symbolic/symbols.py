"""Sizes as symbolic expressions: integers, or the canonical text of a polynomial over named sizes.

An expression is a str; equal texts are equal sizes, so types that carry them can be compared as they are.
The polynomials behind the texts live in a `Symbols` table. What is no polynomial (a quotient that is not
exact, minimum, maximum) becomes a named size of its own: a pure function of its text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping

Size = int | str
Monomial = tuple[str, ...]
Polynomial = dict[Monomial, int]
_LONGEST = 200  # characters of a name


class Symbols:
    """Named sizes of one model, and arithmetic on expressions of them.

    A named size is an axis of some tensor, hence never negative. Every operation returns an int when the
    result does not depend on a named size.
    """

    def __init__(self) -> None:
        self._polynomials: dict[str, Polynomial] = {}
        self._texts: dict[frozenset[tuple[Monomial, int]], str] = {}
        self._signed: set[str] = set()  # names of sizes that may be negative
        self._fresh: dict[Hashable, str] = {}
        self._parts: dict[Size, tuple[str, Size, Size]] = {}  # what sizes that are no polynomials are made of

    def __len__(self) -> int:
        return len(self._polynomials)

    def __contains__(self, text: object) -> bool:
        return text in self._polynomials

    def name(self, name: str) -> str:
        """Register a named size; asking twice for a name gives the same size."""
        known = self._polynomials.get(name)
        if known is None:
            self._polynomials[name] = {(name,): 1}
            self._texts[frozenset((((name,), 1),))] = name
        return name

    def fresh(self, key: Hashable, hint: str) -> str:
        """A named size of its own for `key`, called `hint` unless that is taken."""
        if key not in self._fresh:
            text = hint
            while text in self._polynomials:
                text += "'"
            self._fresh[key] = self.name(text)
        return self._fresh[key]

    def atoms(self, size: Size) -> set[str]:
        """The named sizes in an expression."""
        if isinstance(size, int):
            return set()
        return {atom for monomial in self._polynomials[size] for atom in monomial}

    def terms(self, size: Size) -> list[tuple[int, Monomial]]:
        """An expression as a sum of coefficient times product of named sizes."""
        return [(factor, monomial) for monomial, factor in self._polynomial(size).items()]

    def _polynomial(self, size: Size) -> Polynomial:
        if isinstance(size, int):
            return {(): size} if size else {}
        return self._polynomials[size]

    def _text(self, polynomial: Polynomial) -> Size:
        polynomial = {monomial: factor for monomial, factor in polynomial.items() if factor}
        if not polynomial:
            return 0
        if len(polynomial) == 1 and () in polynomial:
            return polynomial[()]
        key = frozenset(polynomial.items())
        text = self._texts.get(key)
        if text is None:
            text = _print(polynomial)
            while text in self._polynomials:  # somebody called a size "a*b"
                text = f"({text})"
            self._texts[key] = text
            self._polynomials[text] = polynomial
        return text

    # -- arithmetic ---------------------------------------------------------------------------------------

    def add(self, a: Size, b: Size) -> Size:
        """a + b."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return self._combine(a, b, 1)

    def sub(self, a: Size, b: Size) -> Size:
        """a − b."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return self._combine(a, b, -1)

    def _combine(self, a: Size, b: Size, sign: int) -> Size:
        total = dict(self._polynomial(a))
        for monomial, factor in self._polynomial(b).items():
            total[monomial] = total.get(monomial, 0) + sign * factor
        return self._text(total)

    def mul(self, a: Size, b: Size) -> Size:
        """a · b."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 1:
            return b
        if b == 1:
            return a
        total: Polynomial = {}
        for left, x in self._polynomial(a).items():
            for right, y in self._polynomial(b).items():
                monomial = tuple(sorted((*left, *right)))
                total[monomial] = total.get(monomial, 0) + x * y
        return self._text(total)

    def product(self, sizes: tuple[Size, ...] | list[Size]) -> Size:
        """The product of all sizes, 1 of none."""
        total: Size = 1
        for size in sizes:
            total = self.mul(total, size)
        return total

    def div(self, a: Size, b: Size) -> Size | None:
        """a / b rounded towards zero, as ONNX's Div on integers; None for b = 0."""
        if b == 0:
            return None
        if isinstance(a, int) and isinstance(b, int):
            quotient = abs(a) // abs(b)
            return quotient if (a < 0) == (b < 0) else -quotient
        exact = self._exact_quotient(a, b)
        return self._opaque("div", f"({a})//({b})", a, b) if exact is None else exact

    def _exact_quotient(self, a: Size, b: Size) -> Size | None:
        """a / b where every term of a is a multiple of b's single term, or a = b; else None."""
        if a == b:
            return 1
        divisor = self._polynomial(b)
        if len(divisor) != 1:
            return None
        ((monomial, factor),) = divisor.items()
        result: Polynomial = {}
        for term, value in self._polynomial(a).items():
            rest = _without(term, monomial)
            if rest is None or value % factor:
                return None
            result[rest] = value // factor
        return self._text(result)

    def minimum(self, a: Size, b: Size) -> Size:
        """The smaller one."""
        if self.nonnegative(self.sub(b, a)):
            return a
        if self.nonnegative(self.sub(a, b)):
            return b
        return self._opaque("min", f"min({', '.join(sorted((str(a), str(b))))})", a, b)

    def maximum(self, a: Size, b: Size) -> Size:
        """The larger one."""
        if self.nonnegative(self.sub(a, b)):
            return a
        if self.nonnegative(self.sub(b, a)):
            return b
        return self._opaque("max", f"max({', '.join(sorted((str(a), str(b))))})", a, b)

    def _opaque(self, kind: str, text: str, a: Size, b: Size) -> str:
        if len(text) > _LONGEST:  # nested ones grow without end; a digest is as much a function of the text
            text = f"{kind}#{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
        name = self.fresh((kind, text), text)
        self._parts[name] = (kind, a, b)
        signs = [self.nonnegative(part) for part in (a, b)]
        if not (any(signs) if kind == "max" else all(signs)):
            self._signed.add(name)
        return name

    def value(self, size: Size, sizes: Mapping[str, int]) -> int:
        """The number that an expression is for these values of named sizes. KeyError names one that lacks."""
        if isinstance(size, int):
            return size
        if size in sizes:
            return sizes[size]
        if size in self._parts:
            kind, *parts = self._parts[size]
            a, b = (self.value(part, sizes) for part in parts)
            quotient = self.div(a, b) if kind == "div" else {"min": min, "max": max}[kind](a, b)
            return int(quotient or 0)
        terms = self._polynomials[size].items()
        if self._polynomials[size] == {(size,): 1}:
            raise KeyError(size)
        return sum(factor * math.prod(self.value(atom, sizes) for atom in atoms) for atoms, factor in terms)

    # -- what is certain ----------------------------------------------------------------------------------

    def nonnegative(self, size: Size) -> bool:
        """True when the expression is certainly >= 0."""
        if isinstance(size, int):
            return size >= 0
        return all(
            factor >= 0 and not self._signed.intersection(monomial)
            for monomial, factor in self._polynomials[size].items()
        )

    def positive(self, size: Size) -> bool:
        """True when the expression is certainly > 0."""
        if isinstance(size, int):
            return size > 0
        return self.nonnegative(size) and self._polynomials[size].get((), 0) > 0

    def is_minimum(self, a: Size, b: Size) -> bool:
        """True when a is the minimum of b and a number over 1: equal wherever the two broadcast."""
        kind, *parts = self._parts.get(a, ("",))
        return kind == "min" and b in parts and any(isinstance(part, int) and part > 1 for part in parts)

    def equal(self, a: Size, b: Size) -> bool | None:
        """Whether two expressions are certainly equal, certainly different, or neither (None)."""
        if a == b:
            return True
        difference = self.sub(a, b)
        if isinstance(difference, int) or self.positive(difference) or self.positive(self.sub(b, a)):
            return False
        return None

    def less(self, a: Size, b: Size) -> bool | None:
        """Whether a < b certainly, certainly not, or neither (None)."""
        if self.positive(self.sub(b, a)):
            return True
        return False if self.nonnegative(self.sub(a, b)) else None


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    rest = list(monomial)
    for factor in factors:
        if factor not in rest:
            return None
        rest.remove(factor)
    return tuple(rest)


def _print(polynomial: Polynomial) -> str:
    """Terms of higher degree first, then by name; the constant last."""
    text = ""
    for monomial, factor in sorted(polynomial.items(), key=lambda item: (-len(item[0]), item[0])):
        sign = "-" if factor < 0 else "+"
        body = "*".join(_wrapped(atom) for atom in monomial)
        if abs(factor) != 1 or not monomial:
            body = f"{abs(factor)}*{body}" if monomial else str(abs(factor))
        text += f" {sign} {body}" if text else (f"-{body}" if factor < 0 else body)
    return text


def _wrapped(atom: str) -> str:
    return f"({atom})" if any(c in atom for c in " *+") and not atom.endswith(")") else atom
