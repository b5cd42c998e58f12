"use strict";
// Asks the server that this page came from how things stand, and has the report shown again when it has changed.
const INTERVAL = 2000;
const shown = document.getElementById("status");
const away = document.getElementById("away");
const frame = document.getElementById("report");
let version = frame ? frame.dataset.version : "";
let last = "";

async function look() {
  try {
    const answer = await fetch("status" + location.search, { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const text = await answer.text();
    if (text !== last) shown.innerHTML = last = text;
    const now = answer.headers.get("X-Report-Version") || "";
    if (now !== version) {
      version = now;
      if (frame) frame.contentWindow.location.reload();
      else location.reload();
    }
    away.hidden = true;
  } catch {
    away.hidden = false;
  }
  document.body.dataset.looks = String(Number(document.body.dataset.looks || 0) + 1);
  setTimeout(look, document.hidden ? 10 * INTERVAL : INTERVAL);
}
setTimeout(look, INTERVAL);
