// What tests/browser/accessibility.py looks at in a page. An expression: an object of functions.

(() => {
  const name = (element) => `<${element.localName}${element.id ? `#${element.id}` : ""}>`;
  const called = (element) => `${name(element)} "${element.textContent.trim().slice(0, 20)}"`;

  /** Contrast of all texts that are seen, as WCAG 2 computes it. */
  function styles() {
    const wrongs = [];
    const parts = (colour) => {
      const found = colour.match(/[\d.]+/g).map(Number);
      return colour.startsWith("color(srgb") ? [...found.slice(0, 3).map((one) => one * 255), found[3] ?? 1]
        : [found[0], found[1], found[2], found[3] ?? 1];
    };
    const over = ([r, g, b, a], ground) => [r, g, b].map((one, at) => one * a + ground[at] * (1 - a));
    const luminance = (colour) => {
      const [r, g, b] = colour.map((one) => one / 255)
        .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (one, other) => {
      const [darker, lighter] = [luminance(one), luminance(other)].sort((a, b) => a - b);
      return (lighter + 0.05) / (darker + 0.05);
    };
    const groundOf = (element) => {
      const layers = [];
      for (let at = element; at; at = at.parentElement) {
        const layer = parts(getComputedStyle(at).backgroundColor);
        if (layer[3] > 0) layers.push(layer);
        if (layer[3] === 1) break;
      }
      return layers.reduceRight((ground, layer) => over(layer, ground), [255, 255, 255]);
    };
    const check = (element, style, what) => {
      const size = parseFloat(style.fontSize), isBold = Number(style.fontWeight) >= 700;
      const least = size >= 24 || (isBold && size >= 18.66) ? 3 : 4.5;
      const ground = groundOf(element), found = contrast(over(parts(style.color), ground), ground);
      if (found < least) wrongs.push(`${what} in ${name(element)} has a contrast of ${found.toFixed(2)}`);
    };
    const isSeen = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true })
      && element.getClientRects().length > 0;

    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      const element = text.parentElement, said = text.data.trim();
      if (!said || !isSeen(element) || element.closest(":disabled, .sr, svg")) continue;
      check(element, getComputedStyle(element), `"${said.slice(0, 30)}"`);
    }
    for (const field of document.querySelectorAll("input, select, textarea")) {
      if (!isSeen(field) || field.disabled) continue;
      if (field.value) check(field, getComputedStyle(field), "what is written");
      else if (field.placeholder) check(field, getComputedStyle(field, "::placeholder"), "the placeholder");
    }
    return wrongs;
  }

  /** Headings, ids, and what refers to them. */
  function structure() {
    const wrongs = [];
    if (!document.documentElement.lang) wrongs.push("the page does not say its language");
    if (!document.title.trim()) wrongs.push("the page has no title");
    const seen = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter((one) => one.checkVisibility());
    const levels = seen.map((one) => Number(one.localName[1]));
    if (levels.filter((level) => level === 1).length !== 1) wrongs.push(`there are not one but ${levels.join()} headings`);
    levels.forEach((level, at) => {
      if (level > (levels[at - 1] ?? 0) + 1) wrongs.push(`heading ${seen[at].textContent} leaves a level out`);
    });
    const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
    for (const id of new Set(ids.filter((one, at) => ids.indexOf(one) !== at))) wrongs.push(`two have the id ${id}`);
    for (const link of ["aria-labelledby", "aria-describedby", "aria-controls", "for"]) {
      for (const one of document.querySelectorAll(`[${link}]`)) {
        for (const id of one.getAttribute(link).split(/\s+/)) {
          if (!document.getElementById(id)) wrongs.push(`${link} of ${name(one)} leads nowhere`);
        }
      }
    }
    for (const image of document.querySelectorAll("img:not([alt]), svg:not([aria-hidden], [aria-label], [role])")) {
      wrongs.push(`${name(image)} has no words`);
    }
    for (const one of document.querySelectorAll("[tabindex]")) {
      if (one.tabIndex > 0) wrongs.push(`${name(one)} goes before its turn`);
    }
    if (!document.querySelector("main")) wrongs.push("there is no main part");
    return wrongs;
  }

  /** Notes where the focus goes from now on. */
  function follow() {
    const follow = window.following = { steps: [], wrongs: [] };
    document.addEventListener("focusin", ({ target }) => {
      const style = getComputedStyle(target), { width, height } = target.getBoundingClientRect();
      const hasRing = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
      if (!hasRing && style.boxShadow === "none") follow.wrongs.push(`focus is not seen on ${called(target)}`);
      if (!width || !height) follow.wrongs.push(`focus is on ${called(target)}, which is not seen`);
      follow.steps.push(target);
    });
    // What can be reached by Tab: of radio buttons of one name just one.
    const scope = document.querySelector("dialog:modal") ?? document;
    const all = [...scope.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")].filter((one) =>
      one.tabIndex >= 0 && !one.disabled && one.checkVisibility({ visibilityProperty: true }));
    const radios = new Set();
    follow.wanted = all.filter((one) => one.type !== "radio" || (!radios.has(one.name) && radios.add(one.name)));
  }

  /** Where it went. */
  function went() {
    const { steps, wrongs, wanted } = window.following;
    const reached = new Set(steps.map((one) => (one.type === "radio" ? `radio ${one.name}` : one)));
    const missed = wanted.filter((one) => !reached.has(one.type === "radio" ? `radio ${one.name}` : one));
    return { wanted: wanted.length, wrongs: [...new Set(wrongs)].concat(missed.map((one) => `${called(one)} can't be reached by Tab`)) };
  }

  return { styles, structure, follow, went };
})()
