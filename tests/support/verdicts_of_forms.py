"""The part of the table of verdicts that asks whether an answer is finished."""

from __future__ import annotations

# ground truth: the answers that leave nothing to be done; the answers of equal value that do
FORMS: dict[str, tuple[list[str], list[str]]] = {
    # like terms and numbers
    "6x": (["6x", r"6\cdot x", "x*6"], ["2x+4x", "7x-x", "3(x+x)", r"2\cdot3x", "8x-2x", "x+5x"]),
    "30-4n": (["-4n+30", "2(15-2n)"], ["10-4(n-5)", "10-4n+20", "30-(6n-2n)"]),
    "6r^2-4r-24": (["-24-4r+6r^2"], ["4(3r^3+5r-6)-6(2r^3-r^2+4r)", "7r^2-r^2-4r-24"]),
    "2x+2": (["2(x+1)", "2+2x"], ["x+x+2", "2x+1+1", "2(x+2)-2"]),
    r"\frac12x+\frac12": ([r"\frac{x+1}{2}", "0.5x+0.5"], [r"\frac{x}{4}+\frac{x}{4}+\frac12"]),
    r"2\pi r^2": ([r"2r^2\pi"], [r"\pi r^2+\pi r^2", r"\frac{4\pi r^2}{2}"]),
    r"5\ln 2": ([r"\ln 2\cdot 5"], [r"2\ln 2+3\ln 2", r"\ln 2+\ln 16"]),
    "1+x": (["x+1"], ["x^0+x", "1+x^1", "1+0+x"]),
    "x+5": (["5+x"], ["x+2+3", r"x+\sqrt{25}", "x+y+5-y", "x+2^2+1", r"x+\frac{10}{2}"]),
    # powers
    "x^5": (["x^{5}"], [r"x^2\cdot x^3", r"\frac{x^7}{x^2}", r"x\cdot x^4", r"xx^4"]),
    "8x^9": ([r"8\cdot x^9"], ["(2x^3)^3", r"2x^3\cdot 4x^6", "2^3x^9", r"\frac{8x^{10}}{x}"]),
    "x^6": ([], ["(x^2)^3", "(x^3)^2", "(-x)^6", r"x^{2\cdot 3}", "x^{2+4}"]),
    "2^7": (["128", "2^{7}"], [r"2^3\cdot 2^4", r"\frac{2^9}{2^2}", "2^{3+4}", r"2\cdot 64"]),
    "e^2": ([r"\exp(2)"], [r"e\cdot e", "e^{1+1}", r"\frac{e^3}{e}"]),
    r"\frac{x^2}{4}": (
        [r"\frac14x^2", "0.25x^2"],
        [r"(\frac{x}{2})^2", r"\frac{x}{2}\cdot\frac x2"],
    ),
    r"\frac{y^3}{x^2}": (
        ["x^{-2}y^3", "y^3/x^2"],
        [r"\frac{y^5}{x^2y^2}", r"\frac{x^{-2}}{y^{-3}}", r"\frac{xy^3}{x^3}"],
    ),
    # products and sums of letters
    "x^2-x-6": (["-6+x^2-x"], ["(x-3)(x+2)", "x(x-1)-6", "(x-3)x+2(x-3)", "x^2-3x+2x-6"]),
    "(x-3)(x+2)": (["(x+2)(x-3)", "-(3-x)(x+2)", "(3-x)(-x-2)"], ["x^2-x-6", "x(x-1)-6"]),
    "(3y-5)^2": (["(5-3y)^2", "(3y-5)(3y-5)"], ["9y^2-30y+25", "9y^2-15y-15y+25"]),
    "4(3-x)(3+x)": (["(6-2x)(6+2x)", "-4(x-3)(x+3)"], ["36-4x^2", "4(9-x^2)"]),
    "x(x-1)(x+1)": (["(x+1)x(x-1)"], ["x^3-x", "x(x^2-1)"]),
    "x^2-1": (["-1+x^2", "-(1-x^2)"], ["(x-1)(x+1)"]),
    r"\frac{n(n+1)}{2}": ([r"\frac{n^2+n}{2}", r"\frac12n(n+1)", "n(n+1)/2"], []),
    "x^3+3x-6": ([], ["x(x(1+x)+2x)-3(x^2-x+2)", "x^3+3(x-2)+x-x"]),
    r"2\pi r(r+h)": ([r"2\pi r^2+2\pi rh", r"2\pi(r+h)r"], [r"\pi r(r+h)+\pi r(r+h)"]),
    # fractions
    "x+3": (["3+x"], [r"\frac{x^2-9}{x-3}", r"\frac{2x+6}{2}", r"\frac{x^2+3x}{x}"]),
    r"\frac{x}{x+1}": ([r"1-\frac{1}{x+1}"], [r"\frac{1}{1+\frac1x}", r"\frac{x^2}{x^2+x}"]),
    r"\frac{x+y}{xy}": ([r"\frac{y+x}{yx}"], [r"\frac1x+\frac1y", r"\frac{2x+2y}{2xy}"]),
    r"\frac{x+2}{x}": ([r"1+\frac2x"], [r"\frac{2x+4}{2x}", r"\frac{x^2+2x}{x^2}"]),
    # roots
    r"5\sqrt2": (
        ["5√2", r"\sqrt{2}\cdot5"],
        [r"\sqrt{32}+\sqrt{2}", r"\sqrt{50}", r"3\sqrt2+2\sqrt2"],
    ),
    r"6\sqrt5": ([r"6\cdot\sqrt5"], [r"\sqrt{180}", r"2\sqrt{45}", r"\sqrt{36}\sqrt5"]),
    r"\sqrt6": (
        [r"\sqrt{6}"],
        [r"\sqrt2\sqrt3", r"\frac{\sqrt{12}}{\sqrt2}", r"\frac{\sqrt{24}}{2}"],
    ),
    r"2\sqrt[3]{2}": ([], [r"\sqrt[3]{16}", r"\sqrt[3]{54}-\sqrt[3]{2}"]),
    r"\frac{\sqrt2}{2}": ([r"\frac12\sqrt2", "√2/2"], [r"\frac{1}{\sqrt2}", r"\sqrt{\frac12}"]),
    r"\frac{1}{\sqrt2}": (
        [r"\frac{\sqrt2}{2}", r"\sqrt{\frac12}", "2^{-1/2}"],
        [r"\frac{\sqrt6}{2\sqrt3}\cdot1"],
    ),
    r"3+2\sqrt2": ([r"2\sqrt2+3"], [r"(1+\sqrt2)^2", r"3+\sqrt8", r"\sqrt{17+12\sqrt2}"]),
    r"\frac{\sqrt6+\sqrt2}{4}": (
        [r"\frac{\sqrt2(\sqrt3+1)}{4}", r"\frac{\sqrt6}{4}+\frac{\sqrt2}{4}"],
        [],
    ),
    # complex numbers
    "2i": ([r"2\cdot i", "0+2i"], ["(1+i)^2", "i+i", "5i-3i", r"\frac{-2}{i}", r"\sqrt{-4}"]),
    "3+4i": (["4i+3"], ["(2+i)^2", "3+2i+2i", "1+i+2+3i", "(2+i)(2+i)", r"i(4-3i)"]),
    "i": ([], [r"\frac{1+i}{1-i}", "i^5", r"\sqrt{-1}"]),
    # logarithms and functions
    r"\log(xy^2)": ([r"\log(y^2x)"], [r"\log x+2\log y"]),
    r"\log x+2\log y": ([r"2\log y+\log x"], [r"\log(xy^2)"]),
    r"\sin^2 x": ([], [r"1-\cos^2 x", r"\sin x\sin x"]),
    r"\cos x": ([r"\cos(x)"], [r"\frac{\sin x}{\tan x}", r"\sin x\cot x", r"2\cos x-\cos x"]),
    "x+1": (["1+x"], [r"\sin^2 x+\cos^2 x+x", r"\sqrt{x}\sqrt{x}+1", "x+0!"]),
    "5!": (["120"], [r"4!\cdot 5", "5!+0", r"\frac{6!}{6}"]),
    # sets and intervals
    r"\{1,2\}": (
        ["2, 1", r"\{2,1\}"],
        [r"\{1,2,3\}\cap\{1,2,5\}", r"\{1\}\cup\{2\}", r"\{1,2,3\}\setminus\{3\}"],
    ),
    "(1,3]": ([r"x\in(1,3]", r"1<x\le3"], [r"(-\infty,3]\cap(1,\infty)", r"(1,2]\cup(2,3]"]),
    "[0,3]": ([r"0\le x\le 3"], [r"[0,2]\cup[1,3]", r"[0,5]\cap[-1,3]", r"[0,9]\setminus(3,9]"]),
    r"(-\infty,1)\cup(2,\infty)": ([r"(2,\infty)\cup(-\infty,1)", r"x<1 \text{ or } x>2"], []),
    # equations and inequalities
    "x>3": (["3<x", r"(3,\infty)"], ["3x-1>8", "x-3>0", "2x>6", r"\frac{x}{3}>1", "x+1>4"]),
    r"x\le 3": ([r"(-\infty,3]", r"3\ge x"], [r"2x\le 6", r"x+1\le 4"]),
    "0<x<1": (["(0,1)", "1>x>0"], ["0<2x<2", "1<x+1<2"]),
    "y=-2x+4": (["y=4-2x", "-2x+4", "2x+y-4=0"], ["4x+2y=8", "2x+y=4", "y-2=-2(x-1)"]),
    # numbers in tuples and matrices
    "(3,4)": (["(3.0, 4)"], ["(3, 2+2)", "(3, 8/2)", r"(\sqrt9,4)", "(3, 2^2)"]),
    "(x,2y)": ([r"(x,y\cdot2)"], ["(x,y+y)", "(2x-x,2y)"]),
    r"\begin{pmatrix}1\\4\end{pmatrix}": (
        [r"\begin{pmatrix} 1.0 \\ 4 \end{pmatrix}"],
        [r"\begin{pmatrix}1\\2+2\end{pmatrix}", r"2\begin{pmatrix}0.5\\2\end{pmatrix}"],
    ),
    # values of functions
    r"I(0)e^{-t/(RC)}": ([r"I(0)e^{-\frac{t}{RC}}", r"e^{-t/(RC)}I(0)"], ["0", r"I(1)e^{-t/(RC)}"]),
    "f(0)+1": (["1+f(0)"], ["1", "f(1)+1"]),
    "f(x)": (["f(x)"], ["f(y)", "fx", "xf"]),
    "xy+x": (["x+yx"], ["x(y+1)"]),
    "ab+ac": (["ca+ba"], ["a(b+c)"]),
    # points are no intervals
    "(8,-2)": (["(8.0,-2)"], [r"\emptyset", "(-2,8)", r"(3,2)"]),
    r"\emptyset": ([r"\varnothing"], ["(8,-2)", "(3,3)", "[4,1)"]),
    # choices
    "C": (
        [
            "(C) 34",
            "C. 34",
            "C: 34",
            r"\text{C}",
            "c",
            "**C**",
            r"\text{(C)}",
            "Option C",
            "(C)",
            "(c)",
            "C)",
        ],
        [
            "C or D",
            "CAT",
            "A, C",
            "(C) or (D)",
            "D",
            "(D) 34",
            "C and D",
            "A. 3 C. 4",
            "34",
            "not C",
        ],
    ),
    "(C)": (["C", r"\textbf{(C)}\ 34", "C."], ["B", "AC"]),
    r"\text{(E)}": (["E", "(e) none", "E. none"], ["e", "D"]),
    "E": (["E"], ["e", "e^1", "F"]),
    "x": (["x"], ["X.", "(X) 34", "y"]),
}
