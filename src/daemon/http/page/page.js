// Updates the figures of a page while it is open. The pages are readable without this script.
"use strict";
// Announces a message to screen readers; progress at most every ten seconds.
let announcedAt = 0;
const announce = (text, isProgress = false) => {
  if (isProgress && Date.now() - announcedAt < 10_000) return;
  announcedAt = Date.now();
  document.getElementById("announcer").textContent = text;
};
// Settings of this browser.
const SINGLE_KEYS = "hqdl.single-keys";
const hasSingleKeys = () => { try { return localStorage.getItem(SINGLE_KEYS) !== "off"; } catch { return true; } };
document.addEventListener("keydown", (event) => {
  // Enter in the title field saves the query.
  if (event.key === "Enter" && event.target.name === "title") {
    event.preventDefault();
    event.target.form.querySelector('button[value="save"]').click();
    return;
  }
  // Ctrl+Enter runs the query in the text area.
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  const run = event.target.form?.querySelector('button[value="run"], button.main');
  if (run) run.click();
});
(() => {
  if (!window.EventSource || !document.querySelector("[data-run], [data-spec], .runs")) return;
  let waiting = null;
  // Reloads the content of the page, unless the user is editing it.
  const refreshPage = () => {
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
      } catch { /* The daemon is shutting down; the next event refreshes the page. */ }
    }, 250);
  };
  const showRun = (run) => {
    const row = document.querySelector(`tr[data-run="${Number(run.run)}"]`);
    if (!row) return refreshPage();
    const findPart = (name) => row.querySelector(`[data-is="${name}"]`);
    const setText = (name, text) => { const to = findPart(name); if (to) to.textContent = text; };
    const bar = findPart("progress");
    if (bar) {
      bar.max = Math.max(run.cells, 1);
      bar.value = run.cells_done;
    }
    setText("state", run.state);
    if (findPart("state")) findPart("state").className = `badge ${run.state}`;
    setText("cells", `${run.cells_done.toLocaleString("en")} of ${run.cells.toLocaleString("en")}`);
    setText("requests", run.requests.toLocaleString("en"));
    setText("cost", `$${run.cost_usd.toFixed(4)}`);
    setText("seconds", run.seconds.toFixed(1));
    const budget = findPart("budget");
    if (budget) budget.value = run.cost_usd;
    if (run.state !== "running") refreshPage();
  };
  // Updates the duration of running runs every second.
  setInterval(() => {
    for (const row of document.querySelectorAll("tr[data-run]")) {
      const [state, clock] = ["state", "seconds"].map((name) => row.querySelector(`[data-is="${name}"]`));
      if (state.textContent === "running") clock.textContent = (Number(clock.textContent) + 1).toFixed(1);
    }
  }, 1000);
  const events = new EventSource("/v1/runs/events");
  events.addEventListener("run", (event) => showRun(JSON.parse(event.data)));
  events.addEventListener("spec", refreshPage);
  events.addEventListener("missed", refreshPage);
})();
// The query form: shows the cost while the user types, cancels queries, stores a history,
// completes names, and sorts the rows.
(() => {
  const byId = (id) => document.getElementById(id);
  const STORE = "hqdl.queries";
  const loadHistory = () => { try { return JSON.parse(localStorage.getItem(STORE)) ?? []; } catch { return []; } };
  const parameterPrefix = () => byId("parameters").dataset.prefix;
  // A query in the history is the part of its address behind the question mark.
  const saveToHistory = (form) => {
    if (!form.sql.value.trim()) return;
    const kept = [...new FormData(form)].filter(([name, value]) => (value || name.startsWith(parameterPrefix())) && !["do", "title", "max_cost"].includes(name));
    const query = new URLSearchParams(kept).toString();
    const rest = loadHistory().filter((past) => past.query !== query);
    try { localStorage.setItem(STORE, JSON.stringify([{ query }, ...rest].slice(0, 30))); } catch { /* The browser does not allow storage. */ }
  };
  const createButton = (text, act, className = "") => Object.assign(document.createElement("button"), { type: "button", textContent: text, onclick: act, className });

  // Shows the maximum cost of the current query, or only marks its errors.
  let costRequest = null, timer = null;
  const findRunButton = () => document.querySelector('#query button[name="do"].main');
  const showPrice = (text) => {
    if (byId("price").textContent !== text) announce(text);
    byId("price").textContent = text;
  };
  const showCost = async (onlyMarks = false) => {
    const form = byId("query");
    if (!form.sql.value.trim()) return;
    costRequest = new AbortController();
    try {
      const response = await fetch("/v1/explain", {
        method: "POST", signal: costRequest.signal, headers: { "content-type": "application/json" },
        body: JSON.stringify({ spec: form.spec.value || null, sql: form.sql.value, params: readParameters() }),
      });
      const found = await response.json();
      underlineProblems(form.sql, found.error?.problems ?? []);
      if (onlyMarks) return;
      if (!response.ok) { showPrice(found.error.message); return; }
      // Rounded up, as on the server.
      const cost = `$${(Math.ceil(found.cost_usd * 1e4) / 1e4).toFixed(4)}`, run = findRunButton();
      if (found.unbounded?.length) showPrice("The cost is not known before it runs.");
      else if (!found.values_asked) showPrice(`Free: ${found.values_reused} known values, no request.`);
      else {
        // The notes of a query without a cost give the reason why its price is not known.
        const isUnpriced = found.cost_usd === 0 && found.price_notes.length > 0;
        const price = isUnpriced ? "at an unknown price" : `for at most ${cost}`;
        showPrice(`At most ${found.values_asked} values in ${found.requests} requests, ${price}.`);
        run.textContent = `Run, ${price}`;
        run.value = "spend";
        byId("max-cost").value = found.cost_usd > 0 ? cost.slice(1) : "";
      }
    } catch { /* The text has changed since, or the daemon is shutting down. */ }
  };
  const handleChange = () => {
    clearTimeout(timer);
    costRequest?.abort();
    underlineProblems(byId("sql"), []);
    // The price applies to the text before the change.
    byId("explanation")?.remove();
    const run = findRunButton();
    run.textContent = "Run";
    run.value = "run";
    byId("max-cost").value = "";
    timer = setTimeout(showCost, 400);
  };

  // Returns the parameters of the query.
  const listParameters = (sql) => {
    const plain = sql.replace(/'(?:[^']|'')*'|"[^"]*"|--[^\n]*|\/\*[^]*?\*\/|::/g, " ");
    return [...new Set(plain.match(/[:@$][A-Za-z_]\w*|\?\d+/g) ?? [])];
  };
  const findParameterFields = () => [...byId("parameters").querySelectorAll("input")];
  // Parses a value as the server does: a number or null as SQL writes them, otherwise text.
  const parseLiteral = (text) => {
    const word = text.trim();
    if (/^'[^]*'$/.test(text) && text.length > 1) return text.slice(1, -1).replaceAll("''", "'");
    if (/^null$/i.test(word)) return null;
    return /\d/.test(word) && /^[-+.\deE]+$/.test(word) && !Number.isNaN(Number(word)) ? Number(word) : text;
  };
  const readParameters = () => Object.fromEntries(findParameterFields().map((field) =>
    [field.name.slice(parameterPrefix().length), parseLiteral(field.value)]));
  // Shows a field for each parameter, and keeps the values that have been entered.
  const showParameterFields = () => {
    const box = byId("parameters"), entered = new Map(findParameterFields().map((field) => [field.name, field]));
    const names = listParameters(byId("sql").value);
    if (names.map((name) => box.dataset.prefix + name).join() === [...entered.keys()].join()) return;
    box.hidden = !names.length;
    box.replaceChildren(...names.map((name) => {
      const label = document.createElement("label"), code = document.createElement("code");
      code.textContent = name;
      const field = entered.get(box.dataset.prefix + name) ?? Object.assign(document.createElement("input"), { name: box.dataset.prefix + name, placeholder: "number or text" });
      label.append(code, " ", field);
      return label;
    }));
  };

  // Lists the names that begin with the word before the caret.
  const showCompletions = () => {
    const sql = byId("sql"), list = byId("completion");
    const word = /[\w{]*$/.exec(sql.value.slice(0, sql.selectionStart))[0];
    const names = new Set([...document.querySelectorAll("[data-name]")].map((e) => e.dataset.name));
    for (const call of ["{{LLMMap('", "{{LLMQA('", "{{LLMJoin('", "{{LLMValidate('"]) names.add(call);
    const found = [...names].filter((name) => word && name !== word && name.toLowerCase().startsWith(word.toLowerCase())).slice(0, 8);
    list.replaceChildren(...found.map((name) => createButton(name, () => {
      sql.setRangeText(/^\w+$|^\{/.test(name) ? name : `"${name}"`, sql.selectionStart - word.length, sql.selectionStart, "end");
      sql.focus();
      list.hidden = true;
      handleChange();
    }, "chip")));
    list.hidden = !found.length;
  };

  // Reads the lines of a running query: shows the progress and the first rows. Returns the page.
  const readLines = async (response, showProgress) => {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(), live = byId("live");
    const parseHtml = (text) => Object.assign(document.createElement("template"), { innerHTML: text }).content;
    let rest = "", page = null;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((text) => JSON.parse(text))) {
        if (line.progress) showProgress(line.progress);
        if (line.table) {
          document.querySelectorAll("#live ~ *").forEach((old) => old.remove());
          live.replaceChildren(parseHtml(line.table));
          live.hidden = false;
        }
        if (line.rows) live.querySelector("tbody").append(parseHtml(line.rows));
        page = line.page ?? page;
      }
    }
    return page;
  };

  // Moves the focus to the outcome of a query: its rows, price, message or error.
  const findOutcome = () => document.querySelector("#result, main .problem, #explanation, main .note[role=status]");
  const showOutcome = () => {
    const outcome = findOutcome();
    if (!outcome) return;
    // announce() speaks the message, so the element must not be an alert as well.
    if (outcome.matches(".problem, .note")) {
      outcome.setAttribute("role", "group");
      outcome.setAttribute("aria-label", outcome.matches(".problem") ? "Error" : "Message");
    }
    outcome.tabIndex = -1;
    outcome.focus();
    const text = (outcome.querySelector(":scope > p") ?? outcome).textContent;
    announce(text.trim().split("\n")[0].replace(/\s+/g, " "));
  };

  // Submits the form without leaving the page, so that the user can cancel the query.
  let running = null;
  const submitQuery = async (event) => {
    const form = byId("query");
    if (event.target !== form || ["csv", "json", "parquet"].includes(event.submitter?.value)) return;
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, event.submitter));
    saveToHistory(form);
    clearTimeout(timer);
    costRequest?.abort();
    running?.abort();
    const own = running = new AbortController();
    const [cancel, note] = [byId("cancel"), byId("price")];
    cancel.hidden = false;
    const began = Date.now();
    let progress = null;
    const showTime = () => {
      const asked = progress?.requests ? `: ${progress.values} values in ${progress.requests} requests, $${progress.cost_usd.toFixed(4)} so far` : "";
      note.textContent = `Running for ${Math.round((Date.now() - began) / 1000)} s${asked}`;
      announce(note.textContent, true);
    };
    announcedAt = 0;
    showTime();
    const clock = setInterval(showTime, 1000);
    try {
      const response = await fetch(form.action, { method: "POST", body, signal: own.signal, headers: { accept: "application/x-ndjson" } });
      const isStream = response.headers.get("content-type") === "application/x-ndjson";
      const text = isStream ? await readLines(response, (now) => { progress = now; showTime(); }) : await response.text();
      const fresh = new DOMParser().parseFromString(text, "text/html");
      // An alert would be spoken in addition to the announcement.
      for (const alert of fresh.querySelectorAll("main [role=alert]")) alert.removeAttribute("role");
      document.querySelector("main").replaceWith(fresh.querySelector("main"));
      initializeForm();
      showOutcome();
    } catch {
      note.textContent = own.signal.aborted ? "Cancelled. All answers so far are kept." : "The daemon does not answer.";
      announce(note.textContent);
      // The button that had the focus is hidden now.
      if (own.signal.aborted) byId("sql").focus();
    } finally {
      clearInterval(clock);
      cancel.hidden = true;
    }
  };

  // Sorts the shown rows by a column.
  const sortRows = (head) => {
    const [table, column] = [head.closest("table"), head.cellIndex];
    const down = head.ariaSort === "ascending";
    const text = (row) => row.cells[column].textContent;
    const compare = (a, b) => {
      const [x, y] = [text(a), text(b)], [m, n] = [Number(x), Number(y)];
      return x && y && !Number.isNaN(m) && !Number.isNaN(n) ? m - n : x.localeCompare(y);
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? compare(b, a) : compare(a, b)));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.ariaSort = down ? "descending" : "ascending";
    table.tBodies[0].append(...rows);
  };

  const initializeForm = () => {
    const form = byId("query");
    if (!form) return;
    form.sql.addEventListener("input", () => { handleChange(); showParameterFields(); showCompletions(); });
    byId("parameters").addEventListener("input", handleChange);
    form.spec.addEventListener("change", handleChange);
    byId("cancel").addEventListener("click", () => running?.abort());
    const past = loadHistory();
    byId("history").hidden = !past.length;
    byId("history").querySelector("ul").replaceChildren(...past.map((entry) => {
      // An earlier version stored the spec and the SQL.
      const query = entry.query ?? new URLSearchParams({ spec: entry.spec, sql: entry.sql }).toString();
      const item = document.createElement("li");
      item.append(Object.assign(document.createElement("a"), { href: `/query?${query}`, textContent: new URLSearchParams(query).get("sql") }));
      return item;
    }));
    for (const head of document.querySelectorAll("table.sortable thead th"))
      head.replaceChildren(createButton(head.textContent, () => sortRows(head), "plain"));
    const outcome = findOutcome();
    if (!outcome || outcome.matches(".problem")) showCost(Boolean(outcome));
  };
  document.addEventListener("submit", submitQuery);
  initializeForm();
})();
// Saves charts as SVG or PNG.
document.documentElement.classList.add("js");
(() => {
  // Returns the chart with its styles inlined, because the saved file has no style sheet.
  const toSvg = (chart) => {
    const copy = chart.cloneNode(true);
    const parts = [chart, ...chart.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
    for (const [n, part] of parts.entries()) {
      const style = getComputedStyle(part);
      for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family"])
        copies[n].setAttribute(name, style.getPropertyValue(name));
    }
    const { width, height } = chart.viewBox.baseVal;
    const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ width, height, fill: getComputedStyle(chart.closest(".card") ?? document.body).backgroundColor })) ground.setAttribute(name, value);
    copy.prepend(ground);
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  };
  const toCanvas = async (chart) => {
    const picture = new Image();
    picture.src = toSvg(chart);
    await picture.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * picture.width, height: 2 * picture.height });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return canvas;
  };
  document.addEventListener("click", async (event) => {
    const kind = event.target.dataset?.save;
    if (!kind) return;
    const figure = event.target.closest("figure"), chart = figure.querySelector("svg"), status = figure.querySelector(".status");
    try {
      if (kind === "copy") {
        const canvas = await toCanvas(chart);
        const blob = await new Promise((done) => { canvas.toBlob(done, "image/png"); });
        await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
        status.textContent = "Copied.";
        return;
      }
      const href = kind === "svg" ? toSvg(chart) : (await toCanvas(chart)).toDataURL("image/png");
      const name = chart.ariaLabel.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60);
      Object.assign(document.createElement("a"), { href, download: `${name}.${kind}` }).click();
      status.textContent = `Saved as ${name}.${kind}.`;
    } catch { status.textContent = "The browser does not allow it."; }
  });
})();
// Underlines problems in a text area, in a layer above it.
const findProblemRange = (text, { line, column }) => {
  const lines = text.split("\n").slice(0, line);
  const last = lines.pop() ?? "";
  const found = lines.reduce((sum, l) => sum + l.length + 1, 0) + [...last].slice(0, column - 1).join("").length;
  // Mark a problem at the end of the text at the last character.
  const from = Math.max(0, Math.min(found, text.trimEnd().length - 1));
  const word = /^[\w.]+|^"[^"]*"|^'[^']*'|^\S+/.exec(text.slice(from).split("\n", 1)[0]);
  return [from, from + Math.max(word?.[0].length ?? 1, 1)];
};
const underlineProblems = (box, problems) => {
  const frame = box.closest(".editor");
  frame.querySelector(".squiggles")?.remove();
  const marked = problems.filter((problem) => problem.line).map((problem) => [...findProblemRange(box.value, problem), problem.severity]).sort((a, b) => a[0] - b[0]);
  if (!marked.length) return;
  const layer = Object.assign(document.createElement("div"), { className: "squiggles", ariaHidden: "true" });
  const mirror = document.createElement("pre"), style = getComputedStyle(box);
  for (const name of ["font", "lineHeight", "padding", "tabSize"]) mirror.style[name] = style[name];
  let at = 0;
  for (const [from, to, severity] of marked) {
    if (from < at) continue;
    const mark = Object.assign(document.createElement("mark"), { className: severity ?? "", textContent: box.value.slice(from, to) });
    mirror.append(box.value.slice(at, from), mark);
    at = to;
  }
  mirror.append(box.value.slice(at));
  layer.append(mirror);
  frame.append(layer);
  box.onscroll = () => { mirror.style.transform = `translateY(${-box.scrollTop}px)`; };
  box.onscroll();
};
// The spec editor: shows problems while the user types, and completes names of fields.
(() => {
  let timer = null, schema = null, checking = null;
  const findForm = () => document.getElementById("spec-editor");
  const showProblems = (problems) => {
    const box = findForm().text, list = document.getElementById("problems");
    underlineProblems(box, problems);
    list.hidden = !problems.length;
    list.replaceChildren(...problems.map((problem) => {
      const item = document.createElement("li");
      const where = problem.line ? `line ${problem.line}, column ${problem.column}: ` : "";
      const more = [problem.expected, problem.help].filter(Boolean).join("; ");
      const button = Object.assign(document.createElement("button"), { type: "button", className: problem.severity ?? "", textContent: `${problem.severity}: ${where}${problem.message}${more ? ` (${more})` : ""}` });
      button.onclick = () => { box.focus(); if (problem.line) box.setSelectionRange(...findProblemRange(box.value, problem)); };
      item.append(button);
      return item;
    }));
    findForm().querySelector(".status").textContent = problems.some((p) => p.severity === "error") ? "The spec has errors." : "The spec is valid.";
  };
  const checkSpec = async () => {
    checking?.abort();
    const own = checking = new AbortController();
    try {
      const response = await fetch(findForm().dataset.check, { method: "POST", signal: own.signal, body: new URLSearchParams({ text: findForm().text.value }) });
      if (response.ok) showProblems((await response.json()).problems);
    } catch { /* The text has changed since, or the daemon is shutting down. */ }
  };
  // Returns the fields of the TOML table at the caret, from the JSON Schema of specs.
  const findFields = (text) => {
    let at = schema;
    const resolve = (node) => {
      while (node) {
        if (node.$ref) node = schema.$defs[node.$ref.split("/").pop()];
        else if (node.items) node = node.items;
        else if (node.anyOf) node = node.anyOf.find((part) => part.type !== "null");
        else return node;
      }
      return node;
    };
    const headers = [...text.matchAll(/^\s*\[\[?([\w.\- "]+)\]\]?/gm)];
    for (const name of headers.at(-1)?.[1].split(".") ?? []) {
      const table = resolve(at);
      at = table?.properties?.[name.trim()] ?? table?.additionalProperties;
    }
    return resolve(at)?.properties ?? {};
  };
  const showFieldNames = async () => {
    schema ??= await (await fetch("/spec.schema.json")).json();
    const box = findForm().text, list = document.getElementById("completion");
    const before = box.value.slice(0, box.selectionStart);
    const word = /(?:^|\n)[ \t]*(\w*)$/.exec(before)?.[1];
    const fields = word === undefined ? {} : findFields(before);
    const names = Object.keys(fields).filter((name) => name !== word && name.startsWith(word) && !["object", "array"].includes(fields[name].type)).slice(0, 12);
    list.replaceChildren(...names.map((name) => {
      const chip = Object.assign(document.createElement("button"), { type: "button", className: "chip", textContent: name, title: fields[name].description ?? "" });
      chip.onclick = () => {
        if (box.readOnly) return;
        box.setRangeText(`${name} = `, box.selectionStart - word.length, box.selectionStart, "end");
        box.focus();
        list.hidden = true;
        scheduleCheck();
      };
      return chip;
    }));
    list.hidden = !names.length;
  };
  const scheduleCheck = () => {
    clearTimeout(timer);
    underlineProblems(findForm().text, []);
    timer = setTimeout(checkSpec, 400);
  };
  document.addEventListener("input", (event) => {
    if (event.target !== findForm()?.text || !findForm().dataset.check) return;
    scheduleCheck();
    showFieldNames();
  });
  if (findForm()?.dataset.check) checkSpec();
})();
// The forms of the Ask page: submits each once, without leaving the page, and shows the time.
(() => {
  let running = null;
  // Returns the message of an error response in JSON.
  const parseErrorMessage = (text) => {
    try {
      const { message, hint } = JSON.parse(text).error;
      return [message, hint].filter(Boolean).join("; ");
    } catch { return undefined; }
  };
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form.live")) return;
    event.preventDefault();
    if (running) return;
    const body = new URLSearchParams(new FormData(form, event.submitter));
    const own = running = new AbortController();
    const [status, cancel] = [form.querySelector(".status"), form.querySelector("button.cancel")];
    const buttons = [...document.querySelectorAll("form.live button")].filter((b) => b !== cancel);
    const began = Date.now();
    const showTime = () => {
      status.textContent = `Working for ${Math.round((Date.now() - began) / 1000)} s`;
      announce(status.textContent, true);
    };
    for (const button of buttons) button.ariaDisabled = "true";
    // The response replaces the form, so edits made in the meantime would be lost.
    const boxes = [...form.querySelectorAll("textarea")].filter((box) => !box.readOnly);
    for (const box of boxes) box.readOnly = true;
    const restore = (message) => {
      status.textContent = message;
      announce(message);
      for (const button of buttons) button.ariaDisabled = null;
      for (const box of boxes) box.readOnly = false;
    };
    cancel.hidden = false;
    cancel.onclick = () => own.abort();
    announcedAt = 0;
    showTime();
    const clock = setInterval(showTime, 1000);
    try {
      const response = await fetch(form.action, { method: "POST", body, signal: own.signal });
      const text = await response.text();
      const main = new DOMParser().parseFromString(text, "text/html").querySelector("main");
      // A page without the editor would lose the user's text.
      if (!main || (form.id && !main.querySelector(`#${form.id}`))) {
        restore(main?.querySelector(".problem")?.textContent ?? parseErrorMessage(text) ?? `The daemon answers with status ${response.status}.`);
        return;
      }
      document.querySelector("main").replaceWith(main);
      main.tabIndex = -1;
      main.focus({ preventScroll: true });
      const outcome = main.querySelector(".answer, section.card, .problem") ?? main;
      outcome.scrollIntoView({ block: "nearest" });
      announce((outcome.querySelector("h2, strong, .note") ?? outcome).textContent.trim().slice(0, 120));
    } catch {
      restore(own.signal.aborted ? "Cancelled. All answers so far are kept." : "The daemon does not answer.");
    } finally {
      clearInterval(clock);
      cancel.hidden = true;
      running = null;
    }
  });
})();
// The upload form: checks the size before sending, shows the progress, and can be cancelled.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.id !== "upload") return;
  event.preventDefault();
  const [status, bar, cancel, send] = [".status", "progress", ".cancel", "button.main"].map((name) => form.querySelector(name));
  if (form.file.files[0].size > Number(form.dataset.max)) {
    status.textContent = "The file is larger than the limit.";
    return;
  }
  const request = new XMLHttpRequest();
  const end = (message) => {
    status.textContent = message;
    announce(message);
    cancel.hidden = bar.hidden = true;
    send.disabled = false;
  };
  request.upload.onprogress = ({ loaded, total }) => {
    bar.value = loaded / total;
    status.textContent = loaded < total ? `${Math.round((100 * loaded) / total)} % sent` : "Reading the file";
    announce(status.textContent, true);
  };
  request.onload = () => {
    const main = new DOMParser().parseFromString(request.responseText, "text/html").querySelector("main");
    if (!main) return end(`The daemon answers with status ${request.status}.`);
    const editor = main.querySelector("#spec-editor");
    // The file stays chosen, so that the user can enter another name.
    if (!editor) {
      for (const old of document.querySelectorAll("main .problem")) old.remove();
      document.querySelector("main").append(main.querySelector(".problem") ?? "");
      return end("Nothing was added.");
    }
    history.replaceState(null, "", editor.getAttribute("action"));
    document.querySelector("main").replaceWith(main);
    main.tabIndex = -1;
    main.focus({ preventScroll: true });
  };
  request.onerror = () => end("The daemon does not answer. It may have rejected the size of the file.");
  request.onabort = () => end("Cancelled. Nothing was added.");
  cancel.onclick = () => request.abort();
  cancel.hidden = bar.hidden = false;
  send.disabled = true;
  status.textContent = "Sending";
  request.open("POST", form.action);
  request.send(new FormData(form));
});
// The review page: one key per answer, unless the user has turned single keys off.
{
  const box = document.querySelector("[name=single-keys]");
  if (box) {
    box.closest("label").hidden = false;
    box.checked = hasSingleKeys();
    document.documentElement.classList.toggle("no-keys", !box.checked);
    box.addEventListener("change", () => {
      try { localStorage.setItem(SINGLE_KEYS, box.checked ? "on" : "off"); } catch { /* The setting applies to this page. */ }
      document.documentElement.classList.toggle("no-keys", !box.checked);
    });
  }
}
document.addEventListener("keydown", (event) => {
  const at = event.target;
  if (document.documentElement.classList.contains("no-keys")) return;
  if (event.ctrlKey || event.metaKey || event.altKey || !document.querySelector(".review")) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName) || (event.key === "Enter" && /^(BUTTON|A)$/.test(at.tagName))) return;
  const found = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (!found) return;
  event.preventDefault();
  if (found.tagName === "INPUT") found.focus();
  else found.click();
});
