// Whatever of the page is cut off, runs out of its box, or lies on other text: one line each.
(() => {
  const problems = [];
  const root = document.documentElement;
  const say = (what, node) => problems.push(what + ': ' + (node.textContent || '').trim().slice(0, 60));
  if (root.scrollWidth > root.clientWidth) problems.push(`page: ${root.scrollWidth} > ${root.clientWidth}`);
  const shown = element => element.checkVisibility() && element.getClientRects().length > 0;
  const inside = (inner, outer, slack) =>
    inner.left >= outer.left - slack && inner.right <= outer.right + slack &&
    inner.top >= outer.top - slack && inner.bottom <= outer.bottom + slack;

  for (const element of document.querySelectorAll('main *:not(svg *)')) {
    if (!shown(element)) continue;
    const style = getComputedStyle(element);
    if (style.overflowX !== 'visible' && element.tagName !== 'svg' &&
        element.scrollWidth > element.clientWidth) say('scrolls or is clipped', element);
    if (style.textOverflow === 'ellipsis') say('ellipsis', element);
  }
  // Text of the page: within its cell or card, and within the window.
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.data.trim() || node.parentElement.closest('svg') || !shown(node.parentElement)) continue;
    const box = node.parentElement.closest('td, th, figcaption, section, figure, details, header');
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const part of range.getClientRects()) {
      if (part.width && !inside(part, box.getBoundingClientRect(), 1.5)) say('out of its box', node);
      if (part.left < 0 || part.right > root.clientWidth) say('out of the window', node);
    }
  }
  // Cells of a table row side by side do not overlap.
  for (const row of document.querySelectorAll('tr')) {
    const cells = [...row.cells].filter(shown).map(cell => cell.getBoundingClientRect());
    cells.forEach((one, i) => cells.slice(i + 1).forEach(two => {
      if (one.left < two.right - 1 && two.left < one.right - 1 &&
          one.top < two.bottom - 1 && two.top < one.bottom - 1) say('cells overlap', row);
    }));
  }
  // Figures: every text within the drawing, none on another. Boxes are a little higher than letters.
  for (const svg of document.querySelectorAll('figure > svg')) {
    if (!shown(svg)) continue;
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(text => {
      const box = text.getBoundingClientRect();
      const high = Math.min(box.width, box.height) * 0.14;
      const turned = box.height > box.width;
      return {text, left: box.left + (turned ? high : 0), right: box.right - (turned ? high : 0),
              top: box.top + (turned ? 0 : high), bottom: box.bottom - (turned ? 0 : high)};
    }).sort((one, two) => one.top - two.top);
    texts.forEach((one, i) => {
      if (!inside(one, frame, 0.5)) say('out of its figure', one.text);
      for (let j = i + 1; j < texts.length && texts[j].top < one.bottom; j++) {
        const two = texts[j];
        if (one.left < two.right - 0.5 && two.left < one.right - 0.5 && two.top < one.bottom - 0.5)
          problems.push(`text on text: ${one.text.textContent} | ${two.text.textContent}`);
      }
    });
  }
  return problems;
})()
