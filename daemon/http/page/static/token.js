// The token, where the daemon wants one: asked for once, kept for this tab alone, sent as a header.

import { byId, setText } from "./elements.js";

const KEY = "forebay.token";
let held = recall();
let asking = null;

export const tokenInUse = () => held;

/**
 * Asks, unless somebody has given another token since `refused` was sent. However many requests
 * were refused, there is one question.
 */
export function askForToken(refused) {
  if (held !== refused) return Promise.resolve();
  asking ??= question(refused).finally(() => {
    asking = null;
  });
  return asking;
}

function question(refused) {
  const dialog = byId("token-dialog");
  const field = byId("token-field");
  setText(byId("token-problem"), refused ? "That token was not accepted." : "");
  field.value = "";
  dialog.showModal();
  field.focus();
  return new Promise((resolve) => {
    const given = (event) => {
      event.preventDefault();
      if (!field.value) return;
      keep(field.value.trim());
      dialog.querySelector("form").removeEventListener("submit", given);
      dialog.close();
      resolve();
    };
    dialog.querySelector("form").addEventListener("submit", given);
  });
}

/** Without a token there is nothing to show, so that the question can't be left by Escape. */
export function bindTokenDialog() {
  byId("token-dialog").addEventListener("cancel", (event) => event.preventDefault());
}

function keep(token) {
  held = token;
  try {
    sessionStorage.setItem(KEY, token);
  } catch {
    // Storage is switched off: it holds until the page is left.
  }
}

function recall() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}
