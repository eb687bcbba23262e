// Keeps figures moving. Without it, everything is there to read all the same.
"use strict";
document.addEventListener("keydown", (event) => {
  // Ctrl+Enter runs the query in the box.
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  const run = event.target.form?.querySelector('button[value="run"]');
  if (run) run.click();
});
(() => {
  if (!window.EventSource || !document.querySelector("[data-run], [data-spec], .runs")) return;
  let waiting = null;
  // The page as it is now, unless somebody is writing into it.
  const refresh = () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const at = document.activeElement;
      if (at && /^(INPUT|TEXTAREA|SELECT|SUMMARY)$/.test(at.tagName)) return;
      if (document.querySelector("main details[open]")) return;
      try {
        const response = await fetch(location.href, { headers: { accept: "text/html" } });
        if (!response.ok) return;
        const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
        document.querySelector("main").replaceWith(fresh.querySelector("main"));
      } catch { /* it is ending; the next event says more */ }
    }, 250);
  };
  const show = (run) => {
    const row = document.querySelector(`tr[data-run="${Number(run.run)}"]`);
    if (!row) return refresh();
    const part = (name) => row.querySelector(`[data-is="${name}"]`);
    const say = (name, text) => { const to = part(name); if (to) to.textContent = text; };
    const bar = part("progress");
    if (bar) {
      bar.max = Math.max(run.cells, 1);
      bar.value = run.cells_done;
    }
    say("state", run.state);
    say("cells", `${run.cells_done} of ${run.cells}`);
    say("requests", run.requests);
    say("price", `$${run.cost_usd.toFixed(4)}`);
    say("seconds", run.seconds.toFixed(1));
    const budget = part("budget");
    if (budget) budget.value = run.cost_usd;
    if (run.state !== "running") refresh();
  };
  // The clock of what goes on.
  setInterval(() => {
    for (const row of document.querySelectorAll("tr[data-run]")) {
      const [state, clock] = ["state", "seconds"].map((name) => row.querySelector(`[data-is="${name}"]`));
      if (state.textContent === "running") clock.textContent = (Number(clock.textContent) + 1).toFixed(1);
    }
  }, 1000);
  const events = new EventSource("/v1/runs/events");
  events.addEventListener("run", (event) => show(JSON.parse(event.data)));
  events.addEventListener("spec", refresh);
  events.addEventListener("missed", refresh);
})();
