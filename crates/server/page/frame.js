/** The frame round the views: theme, drawer, notices and toasts. Knows nothing of conversations. */

import { element, icon, iconButton } from "./dom.js";

export const byId = (id) => document.getElementById(id);

const THEMES = {
  auto: { icon: "auto", label: "Theme: as the system", next: "light" },
  light: { icon: "sun", label: "Theme: light", next: "dark" },
  dark: { icon: "moon", label: "Theme: dark", next: "auto" },
};

/** @param {import("./settings.js").Settings} settings */
export function setUpTheme(settings) {
  const button = byId("theme-button");
  const draw = () => {
    const name = settings.get("theme");
    const theme = THEMES[name];
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.replaceChildren(icon(theme.icon));
    button.setAttribute("aria-label", theme.label);
    button.title = theme.label;
  };
  button.addEventListener("click", () => settings.set("theme", THEMES[settings.get("theme")].next));
  settings.addEventListener("change", (event) => {
    if (event.detail === "theme") draw();
  });
  draw();
}

/** The sidebar is a drawer on narrow screens. @returns {() => void} closes it */
export function setUpDrawer() {
  const [sidebar, scrim, stage, open, close] = [
    "sidebar",
    "scrim",
    "stage",
    "open-sidebar",
    "close-sidebar",
  ].map(byId);
  open.append(icon("menu"));
  close.append(icon("close"));
  const show = (shown) => {
    sidebar.classList.toggle("open", shown);
    scrim.hidden = !shown;
    stage.inert = shown;
    open.setAttribute("aria-expanded", String(shown));
  };
  const leave = () => {
    if (!sidebar.classList.contains("open")) return;
    show(false);
    open.focus();
  };
  open.addEventListener("click", () => {
    show(true);
    close.focus();
  });
  close.addEventListener("click", leave);
  scrim.addEventListener("click", leave);
  matchMedia("(min-width: 50rem)").addEventListener("change", () => show(false));
  sidebar.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && sidebar.classList.contains("open")) {
      event.stopPropagation();
      leave();
    }
  });
  return leave;
}

/** A line across the page that stays until it is cleared with an empty text. */
export function notice(text) {
  const line = byId("notice");
  line.hidden = text === "";
  if (line.textContent !== text) line.textContent = text;
}

const TOAST_MS = 8000;

/** A message that goes by itself, though not while it is pointed at or focused. */
export function toast(text, { action = "", onaction = null, announcer = null } = {}) {
  const node = element("div", { class: "toast" }, element("span", { dir: "auto" }, text));
  const close = () => node.remove();
  if (onaction) {
    node.append(
      element(
        "button",
        {
          type: "button",
          class: "button quiet",
          onclick: () => {
            close();
            onaction();
          },
        },
        action,
      ),
    );
  }
  node.append(iconButton("close", "Dismiss", close));
  const wait = () => setTimeout(() => (node.matches(":hover, :focus-within") ? wait() : close()), TOAST_MS);
  wait();
  byId("toasts").replaceChildren(node);
  announcer?.say(text);
}

/** Lets the browser save `text` as a file. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
