(() => {
const root = document.documentElement;
root.classList.add('js');
const tip = document.createElement('div');
tip.id = 'tip';
tip.setAttribute('role', 'status');
document.body.append(tip);

const words = spot => {
  if (spot.dataset.words === undefined) {
    spot.dataset.words = spot.title;
    spot.setAttribute('aria-label', spot.title);
    spot.removeAttribute('title');
  }
  return spot.dataset.words;
};
const hide = () => tip.classList.remove('on');
const show = spot => {
  tip.textContent = words(spot);
  tip.classList.add('on');
  const at = spot.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const middle = at.left + at.width / 2 - size.width / 2;
  const most = root.clientWidth - size.width - 8;
  const above = at.top - size.height - 8;
  tip.style.left = Math.max(8, Math.min(most, middle)) + 'px';
  tip.style.top = (above < 8 ? at.bottom + 8 : above) + 'px';
};
const spotOf = event => event.target.closest ? event.target.closest('[data-spot]') : null;
const tell = event => { const spot = spotOf(event); if (spot) show(spot); else hide(); };
document.addEventListener('pointerover', tell);
document.addEventListener('focusin', tell);
document.addEventListener('focusout', hide);
// Focus may scroll the page: the words stay with what has it.
addEventListener('scroll', () => {
  const spot = document.activeElement.closest('[data-spot]');
  if (spot) show(spot); else hide();
}, {passive: true});

const groups = spot => [...spot.closest('details').querySelectorAll('.nodes')];
const spotsIn = group => [...group.querySelectorAll(':scope > [data-spot]')];
const STEPS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
document.addEventListener('keydown', event => {
  const spot = spotOf(event);
  if (event.key === 'Escape') hide();
  if (!spot || !STEPS[event.key]) return;
  event.preventDefault();
  const [up, along] = STEPS[event.key];
  const here = groups(spot), number = here.indexOf(spot.parentElement);
  const place = spotsIn(spot.parentElement).indexOf(spot);
  const group = here[Math.max(0, Math.min(here.length - 1, number + up))];
  const spots = spotsIn(group);
  spots[Math.max(0, Math.min(spots.length - 1, place + along))].focus();
});

const number = cell => parseFloat(cell.textContent.replaceAll(',', '').replace('\u2212', '-'));
const sort = (table, head, column) => {
  const high = (head.querySelector('small') || {textContent: ''}).textContent.startsWith('higher');
  const before = head.getAttribute('aria-sort');
  const down = before ? before === 'ascending' : high;
  for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const rows = [...table.tBodies[0].rows], sign = down ? -1 : 1;
  rows.sort((one, two) => {
    const [a, b] = [one.cells[column], two.cells[column]];
    if (column === 0) return sign * a.textContent.localeCompare(b.textContent);
    const [x, y] = [number(a), number(b)];
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return sign * (x - y);
  });
  table.tBodies[0].append(...rows);
};
for (const table of document.querySelectorAll('table')) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    button.addEventListener('click', () => sort(table, head, column));
    head.append(button);
  });
}
})();
