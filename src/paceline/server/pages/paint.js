// How bars look: a colour for the batch, hatching for the kind of work. Shared by the lanes and their legend.

const TILE = 8; // pixels of one pattern

const patterns = new Map(); // "kind colour ratio" -> CanvasPattern

/** A fill for a bar of this kind and colour on `context`. Decode is plain, prefill striped, mixed dotted. */
export function fillOf(context, kind, colour) {
  if (kind === "decode") return colour;
  const ratio = devicePixelRatio || 1;
  const name = `${kind} ${colour} ${ratio}`;
  if (!patterns.has(name)) {
    const pattern = context.createPattern(tile(kind, colour, ratio), "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / ratio));
    patterns.set(name, pattern);
  }
  return patterns.get(name);
}

function tile(kind, colour, ratio) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.round(TILE * ratio);
  const context = canvas.getContext("2d");
  context.scale(canvas.width / TILE, canvas.height / TILE);
  context.fillStyle = colour;
  context.fillRect(0, 0, TILE, TILE);
  context.fillStyle = context.strokeStyle = "rgb(255 255 255 / 75%)";
  if (kind === "prefill") {
    context.lineWidth = 2;
    context.beginPath();
    for (const shift of [-TILE, 0, TILE]) {
      context.moveTo(shift - 1, TILE + 1);
      context.lineTo(shift + TILE + 1, -1);
    }
    context.stroke();
  } else {
    for (const [x, y] of [[2, 2], [6, 6]]) {
      context.beginPath();
      context.arc(x, y, 1.35, 0, 2 * Math.PI);
      context.fill();
    }
  }
  return canvas;
}

/** Make a canvas sharp: as many pixels as the screen has. Returns its context, in CSS pixels. */
export function sharpen(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Colours of the page's own theme, as canvases can use them. */
export function themeColours() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const colours = {};
  for (const name of ["page", "raised", "sunken", "line", "text", "muted", "accent"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  colours.font = getComputedStyle(probe).fontFamily;
  probe.remove();
  return colours;
}
