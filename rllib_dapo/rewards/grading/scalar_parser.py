r"""Read arithmetic by recursive descent: numbers, variables, powers, roots and functions.

The parser refuses what two readers may read differently: `1/2x`, `2 3`, `a^b^c`, `\sin x/2`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from rllib_dapo.rewards.grading.function_values import argument_length, is_power_of_function
from rllib_dapo.rewards.grading.literals import TooLargeError
from rllib_dapo.rewards.grading.tokens import FUNCTIONS, GREEK, Token
from rllib_dapo.rewards.grading.trees import (
    Tree,
    UnreadableError,
    kind,
    negated,
    over,
    scalar,
    times,
)

MAX_DEPTH: Final = 20
"""The deepest nesting that is read. Each level takes about a dozen frames of Python's stack."""

_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_LETTERS = {"e": ("const", "e"), "i": ("const", "i")}
_SYMBOLS: dict[str, Tree] = {
    "pi": ("const", "pi"),
    "infty": ("inf",),
    "emptyset": ("empty",),
}


class ScalarParser(ABC):
    """Reads sums of products of powers from the tokens of one text.

    Attributes:
        tokens: the tokens of the whole text.
        at: the index of the next token.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self._depth = 0
        self._bars = 0  # how many | are open; the next | closes one of them
        self._upper = True  # whether ± is read as +
        self._saw_sign = False  # whether a ± was read
        self._commands: dict[str, Callable[[], Tree]] = {
            "frac": lambda: over(self._argument(split=True), self._argument(split=True)),
            "binom": lambda: ("binom", *(scalar(self._argument(split=True)) for _ in range(2))),
            "sqrt": self._root,
            "exp": lambda: ("^", ("const", "e"), scalar(self.atom())),
            "lfloor": lambda: self._rounded("floor", "rfloor"),
            "lceil": lambda: self._rounded("ceil", "rceil"),
            **{name: self._call(name) for name in ("abs", "floor", "ceil")},
        }

    @abstractmethod
    def bracket(self) -> Tree:
        """Read what stands between brackets; the next token is the opening one."""

    @abstractmethod
    def special(self, command: str) -> Tree:
        """Read a command that is not arithmetic.

        Raises:
            UnreadableError: the command is not part of a value.
        """

    # -- tokens

    def peek(self, *texts: str, of: str = "sign") -> bool:
        """Return whether the next token has type `of` and is one of `texts`, if any are given."""
        if self.at >= len(self.tokens):
            return False
        token = self.tokens[self.at]
        return token.type == of and (not texts or token.text in texts)

    def accept(self, *texts: str, of: str = "sign") -> str:
        """Go past the next token and return its text if it matches `peek`, else return ""."""
        if not self.peek(*texts, of=of):
            return ""
        self.at += 1
        return self.tokens[self.at - 1].text

    def expect(self, text: str, of: str = "sign") -> None:
        """Go past the next token, which has to be this one.

        Raises:
            UnreadableError: it is another token.
        """
        if not self.accept(text, of=of):
            raise UnreadableError(f"{text!r} is missing")

    # -- arithmetic

    def sum(self) -> Tree:
        """Read terms between + and −. A single term may be anything, such as a tuple."""
        terms = [self._signed()]
        while self.peek("+", "-") or self.peek("pm", "mp", of="command"):
            terms.append(self._signed())
        return terms[0] if len(terms) == 1 else ("+", *map(scalar, terms))

    def _signed(self) -> Tree:
        negative = False
        for _ in range(2):  # Two signs may stand together, as in a + -b.
            if sign := self.accept("+", "-"):
                negative ^= sign == "-"
            elif sign := self.accept("pm", "mp", of="command"):
                self._saw_sign = True
                negative ^= (sign == "pm") is not self._upper
        tree = self._product()
        return negated(tree) if negative else tree

    def _product(self) -> Tree:
        tree, divided = self._factor(), False
        while True:
            if self.accept("*"):
                tree = times(tree, self._factor())
            elif self.accept("/"):
                tree, divided = over(tree, self._factor()), True
            elif self._starts_factor() or self._number_follows(tree):
                if divided:
                    raise UnreadableError("a/b c may be (a/b)c or a/(bc)")
                tree = times(tree, self._factor())
            else:
                return tree

    def _starts_factor(self) -> bool:
        """Return whether the next token starts a factor without a sign; a number does not."""
        if self.at >= len(self.tokens):
            return False
        kind_of, text = self.tokens[self.at]
        if kind_of == "command":
            known = text in self._commands or text in FUNCTIONS or text in GREEK
            return known or text == "pi"
        bracket = text in ("(", "[", "{") or (text == "|" and not self._bars)
        return kind_of == "name" or (kind_of == "sign" and bracket)

    def _number_follows(self, tree: Tree) -> bool:
        r"""Return whether a number is the next factor: in (n+1)2^n and 2^{3}5^{2}, not in x 2."""
        if not self.peek(of="number") or self.at == 0 or tree[0] == "tuple":
            return False
        before = self.tokens[self.at - 1].text
        return before == ")" or (before == "}" and (tree[0] == "^" or tree[-1][0] == "^"))

    def _factor(self) -> Tree:
        r"""Read a power, or a mixed number: 2\frac{1}{3} is 7/3 and not a product."""
        literal = self.peek(of="number")
        tree = self._power()
        if not literal or tree[0] != "num" or not self.peek("frac", of="command"):
            return tree
        part = self._power()
        if part[0] not in ("num", "/") or kind(part) != "scalar":
            return times(tree, part)
        whole, rest = Fraction(tree[1]), Fraction(part[1]) if part[0] == "num" else None
        if rest is None and part[1][0] == part[2][0] == "num":
            raise UnreadableError("a mixed number has an improper fraction")
        if rest is None:
            return times(tree, part)
        if whole.denominator > 1 or not 0 < rest < 1:
            raise UnreadableError("a mixed number has an improper fraction")
        return ("num", str(whole + rest))

    def _power(self) -> Tree:
        base = self.atom()
        if self.accept("!"):
            base = ("fn", "!", scalar(base))
            if self.peek("!"):
                raise UnreadableError("x!! may be (x!)! or a double factorial")
        return ("^", scalar(base), self._exponent()) if self.peek("^") else base

    def _exponent(self) -> Tree:
        self.expect("^")
        negative = bool(self.accept("-"))
        tree = scalar(self._argument())
        if self.peek("^") or self.peek("!"):
            raise UnreadableError("a^b^c needs braces")
        return negated(tree) if negative else tree

    def _argument(self, *, split: bool = False) -> Tree:
        r"""Read what `^`, `\frac` and `\sqrt` apply to: a group or an atom.

        With `split`, a number without braces gives one digit only, as in \frac12.
        """
        if split and self.peek(of="number"):
            digits = self.tokens[self.at].text
            if not digits.isdigit():
                raise UnreadableError("a decimal needs braces")
            self.tokens[self.at : self.at + 1] = [Token("number", d) for d in digits]
        return self.atom()

    def atom(self) -> Tree:
        """Read a number, a variable, a group or a command with what belongs to it."""
        if self.at >= len(self.tokens):
            raise UnreadableError("the text breaks off")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLargeError("the text is nested too deeply")
        tree = self._atom(self.tokens[self.at])
        self._depth -= 1
        return tree

    def _atom(self, token: Token) -> Tree:
        if token.type == "sign":
            readers = {"{": self._group, "|": self._absolute}
            return readers.get(token.text, self.bracket)()
        self.at += 1
        if token.type == "number":
            return ("num", str(Fraction(token.text)))
        if token.type == "join":
            raise UnreadableError(f"{token.text!r} is out of place")
        if token.type == "name" or token.text in GREEK:
            return _LETTERS.get(token.text) or self._variable(token.text)
        return self._command(token.text)

    def _command(self, name: str) -> Tree:
        if name in self._commands:
            return self._commands[name]()
        if name in FUNCTIONS:
            return self._function(name)
        return _SYMBOLS.get(name) or self.special(name)

    def _group(self) -> Tree:
        self.expect("{")
        bars, self._bars = self._bars, 0
        tree = self.sum()
        self._bars = bars
        self.expect("}")
        return tree

    def _absolute(self) -> Tree:
        self.expect("|")
        self._bars += 1
        tree = scalar(self.sum())
        self._bars -= 1
        self.expect("|")
        return ("fn", "abs", tree)

    def _variable(self, letter: str) -> Tree:
        """Read a variable, or the value of a function, such as f(0), as one."""
        name = letter + self._subscript()
        if self.peek("(") and (length := argument_length(letter, self.tokens, self.at)):
            name += "".join(token.text for token in self.tokens[self.at : self.at + length])
            self.at += length
        elif self.peek("^") and is_power_of_function(letter, self.tokens, self.at):
            raise UnreadableError("f^2(x) may be f(x)^2 or f(f(x))")
        return ("var", name)

    def _subscript(self) -> str:
        if not self.accept("_"):
            return ""
        braced = bool(self.accept("{"))
        text = self.accept(of="number") or self.accept(of="name")
        while braced and (name := self.accept(of="name")):
            text += name
        if not text or (braced and not self.accept("}")):
            raise UnreadableError("a subscript is not a name")
        return "_" + text

    # -- commands

    def _call(self, name: str) -> Callable[[], Tree]:
        return lambda: ("fn", name, scalar(self.atom()))

    def _root(self) -> Tree:
        index = "2"
        if self.accept("["):
            index = self.accept(of="number")
            self.expect("]")
            if not index.isdigit() or not 2 <= int(index) <= 100:
                raise UnreadableError("the index of a root is not a whole number from 2 to 100")
        return ("root", index, scalar(self._argument()))

    def _rounded(self, name: str, closing: str) -> Tree:
        tree = scalar(self.sum())
        self.expect(closing, of="command")
        return ("fn", name, tree)

    def _function(self, name: str) -> Tree:
        base = None
        if name == "log" and self.accept("_"):
            base = scalar(self.atom())
        power = self._exponent() if self.peek("^") else None
        if power == ("num", "-1"):
            if name not in _INVERSE:
                raise UnreadableError(f"the inverse of {name} is not known")
            name, power = _INVERSE[name], None
        tree: Tree = ("fn", "ln" if base else name, scalar(self._function_argument()))
        if base:
            tree = ("/", tree, ("fn", "ln", base))
        return ("^", tree, power) if power else tree

    def _function_argument(self) -> Tree:
        if self.peek("(", "[", "{", "|"):
            return self.atom()
        tree = self._factor()
        while self._starts_factor() and not self.peek("(", "[", "|"):
            if self.peek(*FUNCTIONS, of="command"):
                break
            tree = times(tree, self._factor())
        if self.peek("/"):
            raise UnreadableError("sin x/2 may be sin(x/2) or (sin x)/2")
        return tree
