"use strict";
// Lines over rounds as SVG. Colours come from the style sheet, so they follow the theme.

const PLOT = { width: 800, height: 240, left: 44, right: 40, top: 12, bottom: 28 };

function svg(tag, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// lines: [{label, kind, left, points: [number or null, ...]}], one point per place 0..last; named(place) is its label; returns the picture and `mark(place)`.
function plotted(lines, named, last, title) {
  const x = (place) => PLOT.left + (place / Math.max(last, 1)) * (PLOT.width - PLOT.left - PLOT.right);
  const highest = Math.max(0.1, ...lines.map((line) => line.points.reduce((a, b) => Math.max(a, b ?? 0), 0)));
  const step = highest > 0.5 ? 0.2 : 0.1;
  const steps = Math.ceil(highest / step - 1e-9);
  const top = steps * step;
  const y = (value) => PLOT.height - PLOT.bottom - (value / top) * (PLOT.height - PLOT.top - PLOT.bottom);
  const picture = svg("svg", { class: "plot", viewBox: `0 0 ${PLOT.width} ${PLOT.height}`, role: "img", "aria-label": title });
  grid(picture, x, y, Array.from({ length: steps + 1 }, (_, at) => at * step), named, last);
  const ends = [];
  for (const line of lines) curve(picture, line, x, y, last, ends);
  const here = svg("line", { class: "here", y1: PLOT.top, y2: PLOT.height - PLOT.bottom });
  picture.append(here);
  const mark = (place) => {
    here.setAttribute("x1", x(place));
    here.setAttribute("x2", x(place));
  };
  const placeAt = (event) => {
    const box = picture.getBoundingClientRect();
    const inside = ((event.clientX - box.left) / box.width) * PLOT.width;
    return Math.round(((inside - PLOT.left) / (PLOT.width - PLOT.left - PLOT.right)) * last);
  };
  return { picture, mark, placeAt };
}

function grid(picture, x, y, heights, named, last) {
  for (const value of heights) {
    const at = y(value);
    picture.append(svg("line", { class: "grid", x1: PLOT.left, x2: PLOT.width - PLOT.right, y1: at, y2: at }));
    picture.append(svg("text", { x: PLOT.left - 6, y: at + 4, "text-anchor": "end" }, value.toFixed(1)));
  }
  const step = Math.max(1, Math.ceil(last / 8));
  for (let place = 0; place <= last; place += step) {
    picture.append(svg("text", { x: x(place), y: PLOT.height - 8, "text-anchor": "middle" }, named(place)));
  }
}

function curve(picture, line, x, y, last, ends) {
  const group = svg("g", { class: line.kind });
  let path = "", end = -1;
  line.points.forEach((value, place) => {
    if (value === null) return;
    path += `${end === place - 1 && path ? "L" : "M"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
    end = place;
  });
  if (!path) return;
  group.append(svg("path", { class: `curve ${line.dash}`, d: path }));
  const [at, high] = [x(end), y(line.points[end])];
  if (end < last && line.left) group.append(svg("path", { class: "out", d: `M${at - 4} ${high - 4}l8 8m0 -8l-8 8` }));
  let free = high + 4; // labels of lines that end together are stacked
  while (ends.some(([other, taken]) => Math.abs(other - at) < 30 && Math.abs(taken - free) < 12)) free += 12;
  ends.push([at, free]);
  group.append(svg("text", { class: "name", x: at + 8, y: free }, line.label));
  picture.append(group);
}
