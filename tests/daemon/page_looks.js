// Returns a list of layout and legibility problems of the page, such as text that is cut off.
// tests/daemon/page_states.rs evaluates this script in the page.
(() => {
  const problems = [];
  const describe = (e) => {
    const text = (e.textContent || e.value || "").trim().replace(/\s+/g, " ").slice(0, 40);
    return `<${e.tagName.toLowerCase()}${e.className?.length ? "." + e.className : ""}> "${text}"`;
  };
  const width = window.innerWidth;
  if (document.documentElement.scrollWidth > width)
    problems.push(`the page is ${document.documentElement.scrollWidth} wide`);
  const isVisible = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  // Nothing extends beyond the window, except the content of scrollable boxes.
  const canScroll = (e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  const isInScrollBox = (e) => { for (let p = e.parentElement; p; p = p.parentElement) if (canScroll(p)) return true; return false; };
  for (const e of document.body.querySelectorAll("*")) {
    if (!isVisible(e)) continue;
    const box = e.getBoundingClientRect();
    if (box.width === 0 || box.height === 0) continue;
    if ((box.right > width + 0.5 || box.left < -0.5) && !isInScrollBox(e))
      problems.push(`${describe(e)} ends at ${box.right.toFixed(0)}`);
    const style = getComputedStyle(e);
    if (["hidden", "clip"].includes(style.overflowX) && style.textOverflow !== "ellipsis" && e.scrollWidth > e.clientWidth + 1 && !(e instanceof SVGElement || e instanceof HTMLInputElement))
      problems.push(`${describe(e)} is cut off`);
    // No cell is so narrow that its text becomes a tall column.
    if (e.matches("td") && box.height > 600) problems.push(`${describe(e)} is ${box.height.toFixed(0)} high`);
    // Controls are large enough for a finger or a mouse.
    if (e.matches("button, select, input:not([type=hidden])")) {
      const area = e.type === "checkbox" ? e.closest("label") : e;
      const height = area.getBoundingClientRect().height;
      if (height < 24) problems.push(`${describe(area)} is ${height.toFixed(0)} high`);
    }
  }
  // Each class has a rule in the style sheet, or a name that only the script uses.
  const sheet = [...document.styleSheets].flatMap((s) => [...s.cssRules]).map((rule) => rule.cssText).join(" ");
  const unstyled = new Set([...document.body.querySelectorAll("[class]")].flatMap((e) => [...e.classList]));
  for (const name of unstyled)
    if (!sheet.includes(`.${name}`) && !["live", "status", "cancel", "sortable"].includes(name)) problems.push(`the class ${name} has no style`);
  // The table of runs never scrolls sideways; other tables do so only in narrow windows.
  for (const e of document.querySelectorAll(".wide"))
    if ((width >= 1280 || e.querySelector("table.runs")) && e.scrollWidth > e.clientWidth + 1)
      problems.push(`${describe(e.firstElementChild)} is ${e.scrollWidth} wide in ${e.clientWidth}`);
  // Computes the contrast of colours as they are displayed.
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const toRgba = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const blend = (top, below) => top.slice(0, 3).map((c, n) => (c * top[3] + below[n] * (255 - top[3])) / 255);
  const findBackground = (e) => {
    const own = toRgba(getComputedStyle(e).backgroundColor);
    if (own[3] === 255) return own.slice(0, 3);
    return blend(own, e.parentElement ? findBackground(e.parentElement) : [255, 255, 255]);
  };
  const computeLuminance = (c) => {
    const [r, g, b] = c.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const computeContrast = (a, b) => {
    const [x, y] = [computeLuminance(a), computeLuminance(b)].sort((m, n) => n - m);
    return (x + 0.05) / (y + 0.05);
  };
  const checkContrast = (e, colour, name) => {
    const ground = findBackground(e);
    const found = computeContrast(blend(toRgba(colour), ground), ground);
    if (found < 4.5) problems.push(`${name}: contrast ${found.toFixed(2)}`);
  };
  let texts = 0;
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const e = nodes.currentNode.parentElement;
    if (!nodes.currentNode.data.trim() || !isVisible(e) || e.closest("script, datalist, option, title, [aria-hidden=true]")) continue;
    texts += 1;
    const style = getComputedStyle(e);
    checkContrast(e, e instanceof SVGElement ? style.fill : style.color, describe(e));
    // The text of a drawing is scaled with the drawing.
    const scale = e.ownerSVGElement ? e.ownerSVGElement.getBoundingClientRect().width / e.ownerSVGElement.viewBox.baseVal.width : 1;
    const size = parseFloat(style.fontSize) * scale;
    if (size < 11) problems.push(`${describe(e)} is written in ${size.toFixed(1)} px`);
  }
  for (const e of document.querySelectorAll("input:not([type=hidden]), textarea, select")) {
    checkContrast(e, getComputedStyle(e).color, describe(e));
    if (e.placeholder) {
      const style = getComputedStyle(e);
      pen.font = style.font;
      const room = e.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      if (pen.measureText(e.placeholder).width > room) problems.push(`"${e.placeholder}" is cut off`);
    }
    if (e.placeholder) checkContrast(e, getComputedStyle(e, "::placeholder").color, `placeholder of ${describe(e)}`);
    if (!e.labels?.length && !e.ariaLabel) problems.push(`${describe(e)} has no label`);
  }
  // Texts in a drawing do not overlap.
  for (const drawing of document.querySelectorAll("svg")) {
    const whole = drawing.getBoundingClientRect();
    const boxes = [...drawing.querySelectorAll("text")].map((t) => [t, t.getBoundingClientRect()]);
    for (const [t, box] of boxes)
      if (box.left < whole.left - 1 || box.right > whole.right + 1 || box.top < whole.top - 2 || box.bottom > whole.bottom + 2)
        problems.push(`${describe(t)} is cut off by its drawing`);
    for (const [n, [a, p]] of boxes.entries())
      for (const [b, q] of boxes.slice(n + 1))
        if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 2 && q.top < p.bottom - 2)
          problems.push(`${describe(a)} lies on ${describe(b)}`);
  }
  if (!texts) problems.push("there is nothing to read");
  return problems;
})()
