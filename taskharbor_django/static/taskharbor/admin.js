"use strict";

// Everything on these pages works without this file. It keeps live parts fresh while the tab is
// seen, goes on with long work by itself, and selects all rows of a page at once.

(() => {
  const live = () => document.getElementById("th-live");
  const reached = "a[href], button, input, select, textarea, summary";
  let timer = null;
  let asking = null;

  // Who fills in a form, or is about to press its button, keeps the page as it is.
  function busy(part) {
    const at = document.activeElement;
    return (part.contains(at) && at.matches("input, select, textarea, button"))
      || part.querySelector("details[open] form") !== null;
  }

  // What was unfolded stays so, by its key or else by its place; what had the focus keeps it.
  function replace(part, fresh) {
    const folds = [...part.querySelectorAll("details")];
    const keyed = new Map(folds.map((each) => [each.dataset.thKey, each.open]));
    fresh.querySelectorAll("details").forEach((each, place) => {
      const was = each.dataset.thKey ? keyed.get(each.dataset.thKey) : folds[place]?.open;
      each.open = was ?? each.open;
    });
    const focus = [...part.querySelectorAll(reached)].indexOf(document.activeElement);
    part.replaceWith(document.adoptNode(fresh));
    if (focus >= 0) fresh.querySelectorAll(reached)[focus]?.focus({ preventScroll: true });
  }

  function away(is) {
    const note = document.getElementById("th-away");
    if (note) note.hidden = !is;
  }

  async function refresh() {
    const part = live();
    asking = new AbortController();
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", signal: asking.signal });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("th-live");
      away(!answer.ok || answer.redirected || !fresh);
      if (answer.redirected || (answer.ok && !fresh)) return; // logged out, or gone: stop asking
      if (fresh && !busy(part)) replace(part, fresh);
      plan();
    } catch (error) {
      if (error.name === "AbortError") return;
      away(true); // ask again later
      plan();
    }
  }

  function plan() {
    clearTimeout(timer);
    const seconds = Number(live()?.dataset.thRefresh || 0);
    if (seconds && !document.hidden) timer = setTimeout(refresh, seconds * 1000);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    asking?.abort();
    if (!document.hidden && live()?.dataset.thRefresh) refresh();
  });

  document.querySelectorAll("form[data-th-continue]").forEach((form) => form.requestSubmit());

  document.querySelectorAll("input[data-th-all]").forEach((box) => {
    box.hidden = false;
    box.addEventListener("change", () => {
      box.closest("table").querySelectorAll("tbody input[name=_selected_action]").forEach((each) => {
        each.checked = box.checked;
      });
    });
  });

  plan();
})();
