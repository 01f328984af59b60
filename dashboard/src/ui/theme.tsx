// Light, dark, or what the system says.
import { useState } from "preact/hooks";

export function Theme() {
  const stored = document.documentElement.dataset.theme ?? "auto";
  const [theme, setTheme] = useState(stored);
  const next = { auto: "light", light: "dark", dark: "auto" }[theme] ?? "auto";
  const change = () => {
    setTheme(next);
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try { next === "auto" ? localStorage.removeItem("promethean-theme") : localStorage.setItem("promethean-theme", next); } catch { /* for this page only then */ }
  };
  return <button type="button" class="icon" onClick={change} aria-label={`Theme: ${theme}. Change to ${next}`} title={`Theme: ${theme}`}>{{ auto: "◐", light: "☀", dark: "☾" }[theme]}</button>;
}
