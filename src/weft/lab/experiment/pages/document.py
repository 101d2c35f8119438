"""The HTML document of all reports: style sheet and script, without external resources; and writing
a report's files into a folder, all or none.

The style is one column of cards, light or dark as the reader's system is. The script makes tables
sortable and shows hints of points for mouse and keyboard; without it hints are titles."""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from types import MappingProxyType

from weft.files.writing import replacing, unwritten
from weft.lab.experiment.pages.drawing import FONT_STACK, HEAT, Drawing, recolour
from weft.lab.experiment.pages.line_charts import LAYOUTS, WIDE, Layout
from weft.lab.experiment.pages.pictures import to_png, to_svg
from weft.model.errors import BadInputError

_LAYOUT = """
:root{--page:#f5f7f9;--card:#fff;--ink:#1a2230;--soft:#5a6675;--rule:#e1e6ec;--accent:#0b5fb3;
--best:#eaf3fc;--lost:#d4541b;color-scheme:light dark}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 FONT_STACK}
main{max-width:1040px;margin:0 auto;padding:44px 24px 56px}
header{margin:0 4px 26px}
h1{font-size:15px;font-weight:600;margin:0;color:var(--accent);letter-spacing:.01em}
.subtitle{margin:2px 0 0;color:var(--soft);font-size:14px}
h1,h2,h3,p,dd,tbody th,td,summary,figcaption{overflow-wrap:anywhere}
.lead{font-size:29px;line-height:1.25;font-weight:650;letter-spacing:-.012em;margin:22px 0 6px;
max-width:34em;text-wrap:balance}
.rest{font-size:17px;color:var(--soft);margin:0;max-width:56em;text-wrap:pretty}
section,figure,details{background:var(--card);border:1px solid var(--rule);border-radius:12px;
margin:0 0 18px;padding:20px 22px}
figure{padding:10px 4px 18px}
h2{font-size:16px;margin:0 0 10px}
figure>svg{width:100%;height:auto;display:none;margin:0 auto}
figcaption,.note{color:var(--soft);font-size:13px;line-height:1.5;margin:6px 0 0}
figcaption{padding:0 20px;max-width:66em}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:5px 20px;margin:0;
font-size:14px}
dt{color:var(--soft)}
dd{margin:0}
dd code{font-size:12.5px;white-space:pre-wrap}
summary{cursor:pointer;font-weight:600;font-size:16px}
svg:has(.series:hover) .series:not(:hover),svg:has(.series:hover) .band{opacity:.22}
[data-spot]:focus{outline:none}
svg [data-spot]:focus{stroke:var(--ink);stroke-width:2}
.n:focus{box-shadow:0 0 0 2px var(--ink)}
#tip{position:fixed;left:0;top:0;z-index:9;visibility:hidden;
max-width:min(420px,calc(100vw - 16px));
padding:6px 10px;border-radius:7px;background:var(--ink);color:var(--page);font-size:13px;
line-height:1.4;white-space:pre-line;overflow-wrap:anywhere;pointer-events:none}
#tip.on{visibility:visible}
"""

_TABLES = """
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:7px 8px;text-align:right;border-bottom:1px solid var(--rule)}
thead th{color:var(--soft);font-weight:500;font-size:12.5px;line-height:1.3;vertical-align:bottom}
thead small{display:block;font-size:11px;font-style:italic}
th:first-child,td:first-child{text-align:left;padding-left:6px}
tbody th{font-weight:500;min-width:9.5em}
td,td .ci{overflow-wrap:normal;white-space:nowrap}
tbody tr:last-child>*{border-bottom:0}
tr.best>*{background:var(--best)}
tr.best th{font-weight:650}
td.best{font-weight:650}
.ci{color:var(--soft);font-size:12.5px;font-weight:400}
table.many .ci{display:block}
.chip{display:inline-block;vertical-align:middle;margin-right:9px}
thead button{all:unset;cursor:pointer;font:inherit;color:inherit}
thead button:hover{color:var(--accent)}
thead button:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
[aria-sort=ascending]>button::after{content:" ▲";font-size:9px}
[aria-sort=descending]>button::after{content:" ▼";font-size:9px}
details table{font-size:12.5px;margin-top:10px}
details th,details td{padding:4px 6px}
"""

_CARDS = """
SELECT{display:block}
SELECT thead{display:none}
.js SELECT thead{display:block}
SELECT thead tr{display:flex;flex-wrap:wrap;gap:4px 14px;padding:0 0 8px}
SELECT thead th{border:0;padding:0}
SELECT thead tr::before{content:"Sort by";color:var(--soft);font-size:12.5px;line-height:1.3}
SELECT thead button{text-decoration:underline;text-underline-offset:3px}
SELECT thead small{display:none}
SELECT tbody{display:block}
SELECT tbody tr{display:grid;gap:4px 16px;padding:10px 8px;border-top:1px solid var(--rule);
grid-template-columns:repeat(auto-fill,minmax(130px,1fr))}
SELECT tbody tr.best{background:var(--best);border-radius:8px}
SELECT tbody th{grid-column:1/-1;border:0;padding:0;text-align:left;font-weight:600}
SELECT tbody td{border:0;padding:0;text-align:left;white-space:normal}
SELECT tbody td::before{content:attr(data-title);display:block;color:var(--soft);font-size:12px;
line-height:1.3;font-weight:400}
"""

_MAP = """
.map h3{font-size:14px;margin:16px 0 6px}
.map h3 span{font-weight:400;color:var(--soft)}
.nodes{display:flex;flex-wrap:wrap;gap:5px;align-items:flex-start}
.n{display:grid;gap:1px;border-radius:2px;grid-template-columns:repeat(var(--c,4),var(--s,7px))}
.n b{height:var(--s,7px);border-radius:1px}
.n b.h0{border:1px solid var(--rule)}
.n i{grid-column:1/-1;height:3px;width:var(--f);background:var(--lost)}
.large{--s:18px;gap:12px}
.n em{grid-column:1/-1;font:11px/1.3 FONT_STACK;color:var(--soft);max-width:86px;min-width:100%;
width:min-content;overflow-wrap:anywhere}
.mapkey{display:flex;flex-wrap:wrap;gap:4px 18px;align-items:center;font-size:13px;
color:var(--soft)}
.mapkey span{display:inline-flex;gap:6px;align-items:center}
.mapkey .n{display:inline-grid;--c:9;--s:12px}
.mapkey .n i{width:24px}
"""

_SIZES = """
@media (min-width:1000px){figure>svg.wide{display:block}}
@media (min-width:620px) and (max-width:999.9px){
figure>svg.medium{display:block;max-width:800px}
main{padding:32px 16px 40px}
CARDS_MANY}
@media (max-width:619.9px){
figure>svg.narrow{display:block;max-width:480px}
main{padding:22px 8px 32px}
section,details{padding:16px 12px}
.lead{font-size:23px}
.rest{font-size:15.5px}
figcaption{padding:0 12px}
dl{grid-template-columns:minmax(0,1fr)}
dd{margin-bottom:6px}
CARDS_ALL}
"""

_DARK = """
:root{--page:#0e1318;--card:#151b22;--ink:#e8ecf2;--soft:#9fabba;--rule:#27303a;--accent:#5aa9f5;
--best:#17283a;--lost:#f58a56}
"""

_PRINT = """
@page{margin:14mm}
main{max-width:none;padding:0}
body{background:#fff;font-size:11pt}
section,figure,details{break-inside:avoid;border-radius:0;border-width:1px 0 0;padding:10px 0}
.lead{font-size:19pt}
figure>svg.wide{display:block}
figure>svg.medium,figure>svg.narrow,#tip{display:none}
"""


def _cards(tables: str) -> str:
    return _CARDS.replace("SELECT", tables)


def _shades(*, dark: bool) -> str:
    """Return CSS for the colours of the map's GPUs, the same as in figures."""
    shades = ((paint.name, paint.dark if dark else paint.light) for paint in HEAT)
    return "".join(f".n b.{name}{{background:{colour}}}" for name, colour in shades)


_SCREEN = _SIZES.replace("CARDS_MANY", _cards("table.many")).replace("CARDS_ALL", _cards("table"))
STYLE = (
    (_LAYOUT + _TABLES + _MAP).replace("FONT_STACK", FONT_STACK)
    + f"{recolour(dark=False)}{_shades(dark=False)}\n{_SCREEN}"
    + f"@media screen and (prefers-color-scheme:dark){{{_DARK}{recolour(dark=True)}"
    + f"{_shades(dark=True)}}}\n@media print{{{_PRINT}}}\n"
)
"""The style sheet. Dark colours are for screens only: paper stays white."""


SCRIPT = """
(() => {
const root = document.documentElement;
root.classList.add('js');
const tip = document.createElement('div');
tip.id = 'tip';
tip.setAttribute('role', 'status');
document.body.append(tip);

const words = spot => {
  if (spot.dataset.words === undefined) {
    const title = spot.querySelector('title');
    spot.dataset.words = title ? title.textContent : spot.title;
    spot.setAttribute('aria-label', spot.dataset.words);
    if (title) title.remove(); else spot.removeAttribute('title');
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

const groups = spot => {
  const whole = spot.closest('svg') || spot.closest('details');
  const all = [...whole.querySelectorAll('g, .nodes')];
  return all.filter(group => group.querySelector(':scope > [data-spot]'));
};
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

const number = cell => parseFloat(cell.textContent.replaceAll(',', '').replace('\\u2212', '-'));
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
"""

SCRIPT_HASH = "sha256-" + b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
"""Hash by which the page's policy allows this script and no other."""


_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src "
    f"'{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'"
)
"""Content security policy: nothing is loaded, whatever the names of policies or pods contain."""


def document(title: str, body: str) -> str:
    """Return a page with this title around the HTML `body`, with all reports' style and script."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


PAGE = "report.html"


class ReportWriter:
    """A report in the making: its page's figures in all widths, and its files."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.drawings: list[Drawing] = []
        """The figures so far, in the width of their files."""

    def figures(
        self,
        draw: Callable[[Layout], Sequence[Drawing]],
        captions: Mapping[str, str] = MappingProxyType({}),
    ) -> list[str]:
        """Return HTML of each figure that `draw` makes, with captions by name."""
        shown = []
        for same in zip(*(draw(layout) for layout in LAYOUTS), strict=True):
            svgs = "".join(
                to_svg(drawing, layout.name) for drawing, layout in zip(same, LAYOUTS, strict=True)
            )
            self.drawings += [
                drawing for drawing, layout in zip(same, LAYOUTS, strict=True) if layout is WIDE
            ]
            caption = escape(captions.get(same[0].name, ""))
            under = f"<figcaption>{caption}</figcaption>" if caption else ""
            shown.append(f'<figure id="{same[0].name}">\n{svgs}{under}\n</figure>')
        return shown

    def write(
        self,
        folder: Path,
        body: str,
        stale: Iterable[str],
        *,
        png: bool = False,
        others: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Path:
        """Write the figures (with `png` also as PNG), `others`, and last the page; return the
        page's path.

        Files of an older report that are named in `stale` are deleted."""
        files = {f"{drawing.name}.svg": to_svg(drawing).encode() for drawing in self.drawings}
        if png:
            files |= {f"{drawing.name}.png": to_png(drawing) for drawing in self.drawings}
        files |= others
        files[PAGE] = document(self.title, body).encode()
        write_files(folder, files, stale)
        return folder / PAGE


def how_made(rows: Mapping[str, str], command: str = "") -> str:
    """Return the section at a report's end that says how to reproduce it."""
    cells = [f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows.items()]
    if command:
        cells.insert(0, f"<dt>Command</dt><dd><code>{escape(command)}</code></dd>")
    listed = "\n".join(cells)
    return f"<section>\n<h2>How this was made</h2>\n<dl>\n{listed}\n</dl>\n</section>"


def write_files(directory: Path, files: dict[str, bytes], stale: Iterable[str]) -> None:
    """Write these files into the folder, all or none, the last one last.

    Files named in `stale` that are not among them are deleted: figures of an older report would
    show other numbers."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _replace(directory, files)
        for name in stale:
            if name not in files:
                (directory / name).unlink(missing_ok=True)
    except FileExistsError:
        raise BadInputError(str(directory), "is a file; name a folder for the report") from None
    except OSError as error:
        raise unwritten(directory, error) from None


def _replace(directory: Path, files: dict[str, bytes]) -> None:
    """Write all files under temporary names, then rename them; nothing is left over on failure."""
    with ExitStack() as ready:
        for name, content in reversed(files.items()):  # the first is renamed first
            file = ready.enter_context(replacing(directory / name))
            file.write(content)
            file.flush()
