// The view in a page of its own: demo.html?world=eight&theme=dark&width=300&live=1

import { Connection } from "/monarch_nb/notebook/live/front/connection.js";
import { mountMesh } from "/monarch_nb/notebook/live/front/view.js";
import { live, WORLDS } from "./fake_kernel.js";

const asked = new URLSearchParams(location.search);
const theme = asked.get("theme") ?? "light";
const place = document.querySelector("#place");
if (theme !== "none") document.body.dataset.jpThemeLight = String(theme === "light");
place.style.width = `${asked.get("width") ?? 1100}px`;

const kernel = WORLDS[asked.get("world") ?? "eight"]();
const connection = new Connection(kernel.transport, { mesh: "train" });
const calls = [];
const view = mountMesh(place, connection, {
  mesh: "train",
  ranks: null,
  compact: asked.has("compact"),
  onJump: (number) => calls.push(["jump", number]),
  onLogs: (mesh, ranks) => calls.push(["logs", mesh, ranks]),
  onDebug: (mesh, rank) => calls.push(["debug", mesh, rank]),
});
connection.open();
if (asked.has("live")) live(kernel);
window.demo = { kernel, connection, view, calls, model: connection.model };
