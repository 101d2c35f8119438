"""The report page's style sheet: one column of cards, light or dark as the reader's system is."""

from weft.lab.experiment.style import FONT_STACK, recolour

_LAYOUT = """
:root{--page:#f5f7f9;--card:#fff;--ink:#1a2230;--soft:#5a6675;--rule:#e1e6ec;--accent:#0b5fb3;
--best:#eaf3fc;color-scheme:light dark}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 FONT_STACK}
main{max-width:1040px;margin:0 auto;padding:44px 24px 56px}
header{margin:0 4px 26px}
h1{font-size:15px;font-weight:600;margin:0;color:var(--accent);letter-spacing:.01em}
.subtitle{margin:2px 0 0;color:var(--soft);font-size:14px;overflow-wrap:anywhere}
.lead{font-size:29px;line-height:1.25;font-weight:650;letter-spacing:-.012em;margin:22px 0 6px;
max-width:34em;text-wrap:balance}
.rest{font-size:17px;color:var(--soft);margin:0;max-width:56em;text-wrap:pretty}
section,figure,details{background:var(--card);border:1px solid var(--rule);border-radius:12px;
margin:0 0 18px;padding:20px 22px}
figure{padding:10px 4px 18px}
h2{font-size:16px;margin:0 0 10px}
figure svg{display:block;width:100%;height:auto;min-width:680px}
.scroll{overflow-x:auto}
figcaption,.note{color:var(--soft);font-size:13px;line-height:1.5;margin:6px 0 0}
figcaption{padding:0 20px;max-width:66em}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
thead th{color:var(--soft);font-weight:500;font-size:12.5px;line-height:1.3;vertical-align:bottom;
white-space:normal}
th:first-child,td:first-child{text-align:left;padding-left:6px}
tbody th{font-weight:500}
tbody tr:last-child>*{border-bottom:0}
tr.best>*{background:var(--best)}
tr.best th{font-weight:650}
td.best{font-weight:650}
.ci{color:var(--soft);font-size:12.5px}
.chip{display:inline-block;vertical-align:middle;margin-right:9px}
summary{cursor:pointer;font-weight:600;font-size:16px}
details table{font-size:12.5px;margin-top:10px}
details th,details td{padding:4px 8px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:5px 20px;margin:0;font-size:14px}
dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
svg:has(.series:hover) .series:not(:hover),svg:has(.series:hover) .band{opacity:.22}
""".replace("FONT_STACK", FONT_STACK)

_DARK = """
:root{--page:#0e1318;--card:#151b22;--ink:#e8ecf2;--soft:#9fabba;--rule:#27303a;--accent:#5aa9f5;
--best:#17283a}
"""

_PRINT = """
@page{margin:14mm}
main{max-width:none;padding:0}
body{background:#fff;font-size:11pt}
section,figure,details{break-inside:avoid;border-radius:0;border-width:1px 0 0;padding:10px 0}
.lead{font-size:19pt}
figure svg{min-width:0}
.scroll{overflow:visible}
"""

STYLE = (
    f"{_LAYOUT}{recolour(dark=False)}\n"
    f"@media screen and (prefers-color-scheme:dark){{{_DARK}{recolour(dark=True)}}}\n"
    f"@media print{{{_PRINT}}}\n"
)
"""Dark is for screens only: paper stays white."""
