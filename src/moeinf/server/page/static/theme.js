// Light, dark, or as the system has it. It runs before the page is drawn, so that nothing flashes.

const CHOICES = [null, "light", "dark"];
const STORED = "moeinf-theme";

function stored() {
  const choice = localStorage.getItem(STORED);
  return CHOICES.includes(choice) ? choice : null;
}

function apply(choice) {
  if (choice) document.documentElement.dataset.theme = choice;
  else delete document.documentElement.dataset.theme;
}

/** Makes `button` go round the three choices, and say which one holds. */
export function themeSwitch(button) {
  const choice = button.appendChild(document.createElement("span"));
  const show = () => (choice.textContent = stored() ?? "auto");
  button.addEventListener("click", () => {
    const next = CHOICES[(CHOICES.indexOf(stored()) + 1) % CHOICES.length];
    if (next) localStorage.setItem(STORED, next);
    else localStorage.removeItem(STORED);
    apply(next);
    show();
  });
  show();
}

apply(stored());
