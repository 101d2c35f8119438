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

/** What a canvas shows, on the page's ground. */
export function png(canvas) {
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  const pen = copy.getContext("2d");
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, copy.width, copy.height);
  pen.drawImage(canvas, 0, 0);
  return new Promise((done) => copy.toBlob(done, "image/png"));
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
