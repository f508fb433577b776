"""What an answer holds besides words: code in colours, and formulas."""

from __future__ import annotations

from tests.support.chromium import Browser
from tests.support.page_chat import ask, ended
from tests.support.page_server import DONE, PageServer, said

TEXT = r"""Energy is $E = mc^2$ or \(\alpha_i\), which costs $5 or $6, `$x$`, US$5-$6 and \$7.

$$
\frac{a}{b}
+ \sqrt{x}
$$

Here \[ \sum_{i=1}^n i \] and $\unknown{x}$.

- an item with $y$
"""
CODE = {
    "python": 'def f(x):  # why\n    """Long\n    text"""\n    return f"a{x}" + 0x1F',
    "ts": "const a = `x\n${y}`; /* c */ foo(null)",
    "json": '{"a": [1, true, "b"]}',
    "toml": '[part]\nname = "a"  # c',
    "sql": "SELECT a FROM b -- c",
    "html": '<a href="x">text</a> <!-- c -->',
    "diff": "@@ -1 +1 @@\n-a\n+b",
    "rust": "fn a<'a>() -> char { 'x' }",
    "latex": r"\frac{a} % b",
    "unheard-of": "def f(): pass",
}
MARKED = {
    "python": ["k:def", "f:f", "c:# why", 's:"""Long\n    text"""', "k:return", 's:f"a{x}"', "n:0x1F"],
    "ts": ["k:const", "s:`x\n${y}`", "c:/* c */", "f:foo", "k:null"],
    "json": ['k:"a"', "n:1", "k:true", 's:"b"'],
    "toml": ["k:[part]", "k:name", 's:"a"', "c:# c"],
    "sql": ["k:SELECT", "k:FROM", "c:-- c"],
    "html": ["k:<a", "f:href", 's:"x"', "k:>", "k:</a", "k:>", "c:<!-- c -->"],
    "diff": ["n:@@ -1 +1 @@", "g:-a", "s:+b"],
    "rust": ["k:fn", "k:char", "s:'x'"],
    "latex": [r"k:\frac", "n:{", "n:}", "c:% b"],
    "unheard-of": [],
}
SPAN = """
    return import('/page/text/formulas.js').then(({ formula }) => {
      const told = (node) => node.children.length
        ? `${node.localName}(${[...node.children].map(told).join(' ')})`
        : node.textContent || node.localName;
      return arguments[0].map((source) => { try { return told(formula(source)); } catch { return null; } });
    });"""
FORMULAS = {
    r"x^2": "math(msup(x 2))",
    r"x_i^{2n}": "math(msubsup(x i mrow(2 n)))",
    r"f'(x)": "math(mrow(msup(f ′) ( x )))",
    r"\frac12": "math(mfrac(1 2))",
    r"\frac{1}{2}": "math(mfrac(mrow(1) mrow(2)))",
    r"\sqrt[3]{x}": "math(mroot(mrow(x) 3))",
    r"\mathbb{R}^n": "math(msup(mrow(ℝ) n))",
    r"\left(\frac{a}{b}\right]": "math(mrow(( mfrac(mrow(a) mrow(b)) ]))",
    r"\text{if } x": "math(mrow(if\u00a0 x))",
    r"a \ne b \leq \Gamma": "math(mrow(a ≠ b ≤ Γ))",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}": ("math(mrow(( mtable(mtr(mtd(1) mtd(2)) mtr(mtd(3) mtd(4))) )))"),
    r"\hat{y}": "math(mover(mrow(y) ^))",
    r"\lim_{x \to 0}": "math(msub(lim mrow(x → 0)))",
    r"50\% \_ \{a\}": "math(mrow(50 % _ { a }))",
    r"\constructor": None,
    r"\toString": None,
    r"{a": None,
    r"a}": None,
    r"\begin{x}\end{x}": None,
    r"\left( a": None,
    "{" * 100 + "}" * 100: None,
    "x" * 6000: None,
}


def test_formulas_stand_in_the_text(browser: Browser, server: PageServer) -> None:
    server.answers = [[*said(TEXT), DONE]]
    browser.open(server.url)
    ask(browser, "Formulas")
    ended(browser)
    assert [each.get_attribute("textContent") for each in browser.all("math")] == ["E=mc2", "αi", "ab+x", "∑i=1ni", "y"]
    assert browser.run("return [...document.querySelectorAll('math')].map((e) => e.getAttribute('display'))") == [
        None, None, "block", "block", None,
    ]  # fmt: skip
    assert [each.text for each in browser.all(".markdown code")] == ["$x$", r"\unknown{x}"]
    words = str(browser.run("return document.querySelector('.markdown p').textContent"))
    assert words.endswith("costs $5 or $6, $x$, US$5-$6 and $7.")
    assert browser.run("return document.querySelector('math').getBoundingClientRect().height > 10"), "it is drawn"


def test_code_has_colours(browser: Browser, server: PageServer) -> None:
    text = "\n\n".join(f"```{name}\n{code}\n```" for name, code in CODE.items())
    server.answers = [[*said(text, 5), DONE]]
    browser.open(server.url)
    ask(browser, "Code")
    ended(browser)
    script = """
        return [...document.querySelectorAll('.code')].map((block) => [
          block.querySelector('.code-bar span').textContent,
          [...block.querySelectorAll('code span')].map((each) => `${each.className[3]}:${each.textContent}`)])"""
    assert dict(browser.run(script)) == MARKED
    assert [each.get_attribute("textContent") for each in browser.all(".code code")] == list(CODE.values())


def test_the_notation_of_formulas(browser: Browser, server: PageServer) -> None:
    browser.open(server.url)
    assert dict(zip(FORMULAS, browser.run(SPAN, list(FORMULAS)), strict=True)) == FORMULAS
