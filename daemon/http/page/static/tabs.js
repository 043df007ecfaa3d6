// Tabs: one panel is shown, the arrows go from tab to tab, and the address says which, so that a
// link to a tab can be shared.

import { byId } from "./elements.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };

export class Tabs {
  /** `onopen` is told the name of the panel that is opened. */
  constructor(list, onopen) {
    this.tabs = [...list.querySelectorAll("[role=tab]")];
    this.onopen = onopen;
    list.addEventListener("click", (event) => this.choose(event.target.closest("[role=tab]")));
    list.addEventListener("keydown", (event) => this.press(event));
    addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  follow() {
    this.open(this.tabs.find((tab) => `#${nameOf(tab)}` === location.hash) ?? this.tabs[0]);
  }

  choose(tab) {
    if (!tab) return;
    history.replaceState(null, "", tab === this.tabs[0] ? location.pathname : `#${nameOf(tab)}`);
    this.open(tab);
  }

  press(event) {
    const step = STEPS[event.key], from = this.tabs.indexOf(document.activeElement);
    if (step === undefined || from < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const tab = this.tabs[Math.max(0, Math.min(from + step, this.tabs.length - 1))];
    tab.focus();
    this.choose(tab);
  }

  open(chosen) {
    for (const tab of this.tabs) {
      const isChosen = tab === chosen;
      tab.setAttribute("aria-selected", isChosen);
      tab.tabIndex = isChosen ? 0 : -1;
      byId(nameOf(tab)).hidden = !isChosen;
    }
    this.opened = nameOf(chosen);
    this.onopen?.(this.opened);
  }
}

const nameOf = (tab) => tab.getAttribute("aria-controls");
