// What a reader of the page would stumble over, found by computation: a list of
// complaints. Evaluated in the page by tests/it/page_states.rs.
(() => {
  const wrong = [];
  const what = (e) => {
    const text = (e.textContent || e.value || "").trim().replace(/\s+/g, " ").slice(0, 40);
    return `<${e.tagName.toLowerCase()}${e.className?.length ? "." + e.className : ""}> "${text}"`;
  };
  const width = window.innerWidth;
  if (document.documentElement.scrollWidth > width)
    wrong.push(`the page is ${document.documentElement.scrollWidth} wide`);
  const seen = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  // Nothing stands outside of the window, but for what a scrolled box of its own holds.
  const scrolls = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const isBoxed = (e) => { for (let p = e.parentElement; p; p = p.parentElement) if (scrolls(p)) return true; return false; };
  for (const e of document.body.querySelectorAll("*")) {
    if (!seen(e)) continue;
    const box = e.getBoundingClientRect();
    if (box.width === 0 || box.height === 0) continue;
    if ((box.right > width + 0.5 || box.left < -0.5) && !isBoxed(e))
      wrong.push(`${what(e)} ends at ${box.right.toFixed(0)}`);
    const style = getComputedStyle(e);
    if (["hidden", "clip"].includes(style.overflowX) && style.textOverflow !== "ellipsis" && e.scrollWidth > e.clientWidth + 1 && !(e instanceof SVGElement || e instanceof HTMLInputElement))
      wrong.push(`${what(e)} is cut off`);
    // No text stands in a narrow tower.
    if (e.matches("td") && box.height > 600) wrong.push(`${what(e)} is ${box.height.toFixed(0)} high`);
    // What one works with fits a finger or a mouse.
    if (e.matches("button, select, input:not([type=hidden])")) {
      const area = e.type === "checkbox" ? e.closest("label") : e;
      const height = area.getBoundingClientRect().height;
      if (height < 24) wrong.push(`${what(area)} is ${height.toFixed(0)} high`);
    }
  }
  // The table of runs is read without scrolling it, and all of them where there is room.
  for (const e of document.querySelectorAll(".wide"))
    if ((width >= 1280 || e.querySelector("table.runs")) && e.scrollWidth > e.clientWidth + 1)
      wrong.push(`${what(e.firstElementChild)} is ${e.scrollWidth} wide in ${e.clientWidth}`);
  // Colours as a screen shows them.
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, below) => top.slice(0, 3).map((c, n) => (c * top[3] + below[n] * (255 - top[3])) / 255);
  const behind = (e) => {
    const own = rgba(getComputedStyle(e).backgroundColor);
    if (own[3] === 255) return own.slice(0, 3);
    return over(own, e.parentElement ? behind(e.parentElement) : [255, 255, 255]);
  };
  const light = (c) => {
    const [r, g, b] = c.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((m, n) => n - m);
    return (x + 0.05) / (y + 0.05);
  };
  const legible = (e, colour, name) => {
    const ground = behind(e);
    const found = contrast(over(rgba(colour), ground), ground);
    if (found < 4.5) wrong.push(`${name}: contrast ${found.toFixed(2)}`);
  };
  let texts = 0;
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const e = nodes.currentNode.parentElement;
    if (!nodes.currentNode.data.trim() || !seen(e) || e.closest("script, datalist, option, title, [aria-hidden=true]")) continue;
    texts += 1;
    const style = getComputedStyle(e);
    legible(e, e instanceof SVGElement ? style.fill : style.color, what(e));
    // A drawing is scaled with what is written in it.
    const scale = e.ownerSVGElement ? e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width : 1;
    const size = parseFloat(style.fontSize) * scale;
    if (size < 11) wrong.push(`${what(e)} is written in ${size.toFixed(1)} px`);
  }
  for (const e of document.querySelectorAll("input:not([type=hidden]), textarea, select")) {
    legible(e, getComputedStyle(e).color, what(e));
    if (e.placeholder) {
      const style = getComputedStyle(e);
      pen.font = style.font;
      const room = e.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      if (pen.measureText(e.placeholder).width > room) wrong.push(`"${e.placeholder}" is cut off`);
    }
    if (e.placeholder) legible(e, getComputedStyle(e, "::placeholder").color, `placeholder of ${what(e)}`);
    if (!e.labels?.length && !e.ariaLabel) wrong.push(`${what(e)} has no label`);
  }
  // Words in a drawing do not lie on each other.
  for (const drawing of document.querySelectorAll("svg")) {
    const whole = drawing.getBoundingClientRect();
    const boxes = [...drawing.querySelectorAll("text")].map((t) => [t, t.getBoundingClientRect()]);
    for (const [t, box] of boxes)
      if (box.left < whole.left - 1 || box.right > whole.right + 1 || box.top < whole.top - 2 || box.bottom > whole.bottom + 2)
        wrong.push(`${what(t)} is cut off by its drawing`);
    for (const [n, [a, p]] of boxes.entries())
      for (const [b, q] of boxes.slice(n + 1))
        if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2)
          wrong.push(`${what(a)} lies on ${what(b)}`);
  }
  if (!texts) wrong.push("there is nothing to read");
  return wrong;
})()
