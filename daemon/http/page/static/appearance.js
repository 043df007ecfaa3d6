// The switch between light and dark. What the system prefers holds until it is used.

const KEY = "forebay.theme";
const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

export function bindAppearance(button) {
  const label = button.querySelector("[data-label]");
  const show = () => {
    const dark = isDark();
    label.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", dark ? "Change to light" : "Change to dark");
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem(KEY, root.dataset.theme);
    } catch {
      // It holds for this page then.
    }
    show();
  });
  prefersDark.addEventListener("change", show);
  button.hidden = false;
  show();
}

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
}
