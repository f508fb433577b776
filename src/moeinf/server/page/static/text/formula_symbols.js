// The names that TeX has for symbols, and the alphabets of formulas in Unicode.

const named = (text) =>
  Object.fromEntries(
    text
      .split(/\s+/)
      .map((pair) => pair.split("="))
      .map(([name, sign]) => [`\\${name}`, sign]),
  );

export const SYMBOLS = {
  ...named(
    "alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ " +
      "lambda=λ mu=μ nu=ν xi=ξ omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ " +
      "varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ " +
      "Omega=Ω ell=ℓ hbar=ℏ imath=ı jmath=ȷ Re=ℜ Im=ℑ aleph=ℵ wp=℘ partial=∂ nabla=∇ infty=∞ emptyset=∅ " +
      "varnothing=∅ forall=∀ exists=∃ nexists=∄ neg=¬ lnot=¬ top=⊤ bot=⊥ angle=∠ triangle=△ square=□ Box=□ " +
      "checkmark=✓ dagger=† ddagger=‡ prime=′ degree=°",
  ),
  ...named(
    "pm=± mp=∓ times=× div=÷ cdot=⋅ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙ cap=∩ cup=∪ " +
      "setminus=∖ wedge=∧ land=∧ vee=∨ lor=∨ le=≤ leq=≤ leqslant=⩽ ge=≥ geq=≥ geqslant=⩾ ne=≠ neq=≠ ll=≪ gg=≫ " +
      "equiv=≡ sim=∼ simeq=≃ approx=≈ cong=≅ propto=∝ in=∈ ni=∋ notin=∉ subset=⊂ subseteq=⊆ subsetneq=⊊ supset=⊃ " +
      "supseteq=⊇ mid=∣ nmid=∤ parallel=∥ perp=⟂ vdash=⊢ models=⊨ prec=≺ succ=≻ preceq=⪯ succeq=⪰ therefore=∴ " +
      "because=∵ doteq=≐ triangleq=≜ coloneqq=≔",
  ),
  ...named(
    "to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ implies=⟹ " +
      "impliedby=⟸ iff=⟺ mapsto=↦ longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ longmapsto=⟼ hookrightarrow=↪ " +
      "uparrow=↑ downarrow=↓ updownarrow=↕ Uparrow=⇑ Downarrow=⇓ nearrow=↗ searrow=↘ rightharpoonup=⇀ " +
      "rightleftharpoons=⇌ leadsto=⇝ ldots=… dots=… dotsc=… dotsb=⋯ cdots=⋯ vdots=⋮ ddots=⋱ colon=: langle=⟨ " +
      "rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lbrace={ rbrace=} lbrack=[ rbrack=] lvert=| rvert=| vert=| Vert=‖ " +
      "lVert=‖ rVert=‖ backslash=\\ {={ }=} |=‖ %=% $=$ #=# &=& _=_ cdotp=⋅ lt=< gt=>",
  ),
};

/** Operators that carry their limits above and below. */
export const LARGE = new Map(
  Object.entries(
    named(
      "sum=∑ prod=∏ coprod=∐ int=∫ iint=∬ iiint=∭ oint=∮ bigcup=⋃ bigcap=⋂ bigvee=⋁ " +
        "bigwedge=⋀ bigoplus=⨁ bigotimes=⨂ bigsqcup=⨆",
    ),
  ),
);

/** Names that are written upright; "limits": what is below them stands under them. */
export const FUNCTIONS = named(
  "sin=1 cos=1 tan=1 cot=1 sec=1 csc=1 arcsin=1 arccos=1 arctan=1 sinh=1 cosh=1 tanh=1 log=1 ln=1 lg=1 exp=1 " +
    "deg=1 dim=1 ker=1 hom=1 arg=1 bmod=1 mod=1 lim=limits limsup=limits liminf=limits max=limits min=limits " +
    "sup=limits inf=limits argmax=limits argmin=limits det=limits gcd=limits Pr=limits",
);

export const SPACES = {
  "\\,": "0.17em",
  "\\:": "0.22em",
  "\\>": "0.22em",
  "\\;": "0.28em",
  "\\!": "-0.17em",
  "\\ ": "0.33em",
  "\\quad": "1em",
  "\\qquad": "2em",
};

/** The mark, where it stands, and whether it is as wide as what it stands at. */
export const ACCENTS = {
  "\\hat": ["^", "over"],
  "\\widehat": ["^", "over", true],
  "\\bar": ["¯", "over"],
  "\\overline": ["‾", "over", true],
  "\\vec": ["→", "over"],
  "\\overrightarrow": ["→", "over", true],
  "\\dot": ["˙", "over"],
  "\\ddot": ["¨", "over"],
  "\\tilde": ["~", "over"],
  "\\widetilde": ["~", "over", true],
  "\\check": ["ˇ", "over"],
  "\\overbrace": ["⏞", "over", true],
  "\\underline": ["_", "under", true],
  "\\underbrace": ["⏟", "under", true],
};

/** Where a capital A, a small a and a zero begin; null: there are none. */
export const ALPHABETS = {
  "\\mathbf": [0x1d400, 0x1d41a, 0x1d7ce],
  "\\boldsymbol": [0x1d468, 0x1d482, 0x1d7ce],
  "\\bm": [0x1d468, 0x1d482, 0x1d7ce],
  "\\mathbb": [0x1d538, 0x1d552, 0x1d7d8],
  "\\mathcal": [0x1d49c, 0x1d4b6, null],
  "\\mathscr": [0x1d49c, 0x1d4b6, null],
  "\\mathfrak": [0x1d504, 0x1d51e, null],
  "\\mathsf": [0x1d5a0, 0x1d5ba, 0x1d7e2],
  "\\mathtt": [0x1d670, 0x1d68a, 0x1d7f6],
  "\\mathrm": [0x41, 0x61, 0x30],
  "\\mathit": [0x41, 0x61, 0x30],
};
/** Letters that Unicode had before those alphabets. */
const EARLIER = new Map([
  ...[..."CℂHℍNℕPℙQℚRℝZℤ".matchAll(/(.)(.)/gu)].map(([, from, to]) => [0x1d538 + from.charCodeAt() - 65, to]),
  ...[..."BℬEℰFℱHℋIℐLℒMℳRℛ".matchAll(/(.)(.)/gu)].map(([, from, to]) => [0x1d49c + from.charCodeAt() - 65, to]),
  ...[..."eℯgℊoℴ".matchAll(/(.)(.)/gu)].map(([, from, to]) => [0x1d4b6 + from.charCodeAt() - 97, to]),
  ...[..."CℭHℌIℑRℜZℨ".matchAll(/(.)(.)/gu)].map(([, from, to]) => [0x1d504 + from.charCodeAt() - 65, to]),
]);

/** Text in one of the alphabets; what it lacks stays. */
export function lettersOf(text, [capital, small, zero]) {
  const shifted = (letter, first, start) => (start === null ? null : start + letter.charCodeAt() - first);
  return [...text]
    .map((letter) => {
      let code = null;
      if (/[A-Z]/.test(letter)) code = shifted(letter, 65, capital);
      else if (/[a-z]/.test(letter)) code = shifted(letter, 97, small);
      else if (/\d/.test(letter)) code = shifted(letter, 48, zero);
      return code === null ? letter : (EARLIER.get(code) ?? String.fromCodePoint(code));
    })
    .join("");
}
