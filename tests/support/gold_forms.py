"""Ground truths in the forms in which real data sets write them, one a line."""

from __future__ import annotations

GOLD_FORMS = r"""
\frac34
x \in [-2,7]
\text{(E)}
6 - 5i
\$32,\!348
90^\circ
10:30 \text{ a.m.}
\begin{pmatrix} 1 \\ -2 \end{pmatrix}
\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}
2\sqrt{3}\text{ cm}^2
11\%
y = 2x+1
p - q
\text{Evelyn}
1.25 \times 10^{-3}
4.5e33
1, -2
(0,9)\cup(9,36)
\left( 3, \frac{\pi}{2} \right)
17_8
\text{odd}
0.\overline{3}
\frac{9}{2} \text{ inches}
5.4 \text{ cents}
\$18.90
.0825
x^3+3x-6
(x-y)^2
-\frac{1}{2}, 3
3R^2
(-\infty, 2) \cup (3, \infty)
\left(-\frac{1}{2},-\frac{5}{2}\right)
4210_{5}
2516_8
\text{June 20}
\text{Navin}
\frac{270}7\text{ degrees}
15\text{ cm}^2
10\text{ square units}
\text{ellipse}
\text{A}
\text{Friday}
x=5
1 \pm \sqrt{19}
\frac{1}{2}, -\frac{1}{2}
3 \text{ or } 4
\{ -1, 0, 1 \}
\{x \mid x > 3\}
-2 < x < 3
x < 3
a \le 4
[0, \infty)
\dfrac{17}{50}
137 \frac{1}{2}
3 \frac{1}{2}
5\frac14
\sqrt{\frac{3}{2}}
e^{2\pi i/3}
\cos x
\ln 2
2^{n+1}-1
\binom{n}{2}
n!
\lfloor x \rfloor
\log_2 3
y^2 = 4x
(x-2)^2 + (y+3)^2 = 25
f(x) = x^2
x = 3, y = 4
(3, -1, 2)
1,1,2
A,B,C
\text{A, B, D}
B, C
\text{Yes}
\text{True}
12:45
7:00 \text{ p.m.}
\text{even}
100,\!000
1{,}000
10\sqrt{2} + 5
\frac{\sqrt{6}}{4}
\frac{1+\sqrt{5}}{2}
-\frac{\sqrt{3}}{2} + \frac{1}{2}i
\frac{2}{3} \pi r^3
120^{\circ}
\frac{\pi}{4}
\pm 2
\pm\sqrt{3}
5, -5
\mathbb{R}
\text{no real solutions}
\text{Infinitely many}
\infty
-\infty
8\pi \text{ cubic meters}
25\text{ mph}
50 \text{ m/s}
9.8 \text{ m/s}^2
9.8 \mathrm{~m/s^2}
1.6 \times 10^{-19} \mathrm{C}
6.02e23
-1.5e-10
3.0 \times 10^8 \text{ m/s}
1.4e3 \text{ pc}
2.5 \mu m
1/2
-3/4
1 1/2
0.5
5.0
007
2:3
3:2
2 : 3 : 4
1:\sqrt{3}
\frac{m}{s}
(2,3), (4,5)
\left[ 2, 3 \right]
(1, 4]
(-1,1) \cup \{3\}
x\geq 2 \text{ or } x\leq -1
k \neq 0
2n
2n+1
n(n+1)2^{n-3}
n^2
\frac{n(n+1)}{2}
(2k+1)\pi
\frac{\pi}{6}+2k\pi
a_n = 2n-1
a_n=3\cdot 2^{n-1}
\overline{AB}
AB
\angle ABC
\triangle ABC
\vec{a}
\mathbf{i} + 2\mathbf{j}
y'' + y = 0
C_1 e^x + C_2 e^{-x}
\frac{dy}{dx} = 2x
\sum_{k=1}^n k^2
\int_0^1 x dx
\lim_{n\to\infty} a_n
2 \sin x + C
\frac{x^3}{3} + C
9 (apples)
7 (in)
35 (cents)
18 (cm)
8; 4
10 (people), 5
3 dogs
145 \text{ students}
$34$
$x = 2$
$5$ or $9$
$\frac{1}{2}$
$8\pi$ cm
2,3,5,7
3, 5, 7, 9
1,000
1,000,000
(4, 5, 6)
1,234,567
0.3\overline{18}
\frac{3}{2}\sqrt{2} - 1
2.5\%
33\frac{1}{3}\%
10^{33}
10^6
2^{10}
5!
\tan^{-1}(2)
\arctan 2
\frac{\sin x}{x}
|x-1|
\sqrt[3]{4}
p^2 - 4q
\frac{a+b}{c}
abc
xyz
V = \frac{4}{3}\pi r^3
m = 3
E = mc^2
T_1 = 2T_2
\text{Option C}
C
(C)
D.
I and II
I, III
\text{I only}
SSS
NaCl
12 \text{ inches by } 5 \text{ inches}
two
\text{Monday, May 4}
January 5
3rd
1st
\text{5th}
50^\circ \text{C}
20^\circ C
5\,
{5}
-5
+5
\mathrm{(A)}
\textbf{(A)}
\boxed{7}
\boxed{x+1}
""".strip().split("\n")

# Different texts of one value.
ONE_VALUE = [
    {"x=5", "5.0", r"5\,", "{5}", "+5"},
    {r"\text{A}", r"\mathrm{(A)}", r"\textbf{(A)}"},
    {"1{,}000", "1,000"},
    {r"9.8 \text{ m/s}^2", r"9.8 \mathrm{~m/s^2}"},
    {"1/2", "0.5", r"$\frac{1}{2}$"},
    {"007", r"\boxed{7}"},
    {r"\overline{AB}", "AB"},
    {"3 dogs", "m = 3"},
    {"1,000,000", "10^6"},
    {r"33\frac{1}{3}\%", r"0.\overline{3}"},
    {r"\tan^{-1}(2)", r"\arctan 2"},
    {"C", "(C)", r"\text{Option C}"},
    {r"120^{\circ}", "5!"},
    {r"\text{A, B, D}", "A,B,D"},
]
