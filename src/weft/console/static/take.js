// What is taken along from a page: its address, its table as CSV, its picture as PNG.

/** Rows as CSV. No cell is a formula for the program that opens it. */
export function csv(head, rows) {
  const cell = (value) => {
    const text = String(value ?? "");
    const plain = /^[=+\-@\t\r]/.test(text) && typeof value !== "number" ? `'${text}` : text;
    return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",") + "\r\n").join("");
}

export function save(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const LINE_PX = 22;

/** Pictures below each other on the page's ground, as they are on the screen: canvases, and charts with what is said
 * of them. Charts are drawn by their lines: as images they would be of no origin, which the page may not load. */
export function png(pictures) {
  const scale = devicePixelRatio || 1;
  const style = getComputedStyle(document.body);
  const shown = pictures.map((picture) => ({ picture, texts: textsOf(picture), box: picture.getBoundingClientRect() }));
  const copy = document.createElement("canvas");
  copy.width = Math.max(...shown.map(({ box }) => box.width)) * scale;
  copy.height = shown.reduce((sum, { texts, box }) => sum + box.height + LINE_PX * texts.length, 0) * scale;
  const pen = copy.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(0, 0, copy.width, copy.height);
  pen.fillStyle = style.color;
  pen.font = `13px ${style.fontFamily}`;
  let y = 0;
  for (const { picture, texts, box } of shown) {
    for (const text of texts) pen.fillText(text, 0, (y += LINE_PX) - 7, box.width);
    if (picture.localName === "canvas") pen.drawImage(picture, 0, y, box.width, box.height);
    else trace(pen, picture, y, box);
    y += box.height;
  }
  return new Promise((done) => copy.toBlob(done, "image/png"));
}

/** What stands around a picture: of a chart its caption and scale, else the title of its section. */
function textsOf(picture) {
  const around = picture.closest("figure")?.querySelectorAll("figcaption, .scale") ?? picture.closest("section")?.querySelectorAll("h2") ?? [];
  return [...around].map((each) => [...each.childNodes].map((node) => node.textContent).join("   "));
}

function trace(pen, chart, top, { width, height }) {
  const drawn = chart.viewBox.baseVal;
  const place = new DOMMatrix([width / drawn.width, 0, 0, height / drawn.height, 0, top]);
  pen.save();
  for (const shape of chart.children) {
    const style = getComputedStyle(shape), at = (name) => shape.getAttribute(name);
    const line = new Path2D();
    line.addPath(new Path2D(at("d") ?? `M${at("x1")},${at("y1")}L${at("x2")},${at("y2")}`), place);
    pen.strokeStyle = style.stroke;
    pen.lineWidth = parseFloat(style.strokeWidth);
    pen.setLineDash(style.strokeDasharray === "none" ? [] : style.strokeDasharray.split(/[ ,]+/).map(parseFloat));
    pen.stroke(line);
  }
  pen.restore();
}

/** The page's address into the clipboard; true if that was possible. */
export async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    return true;
  } catch {
    return false; // on plain HTTP from elsewhere browsers have no clipboard
  }
}
