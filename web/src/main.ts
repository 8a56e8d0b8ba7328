import "./styles/themes.css";
import "./styles/base.css";
import "./styles/code.css";
import { mount } from "svelte";
import Root from "./App.svelte";
import { createChannel } from "./lib/channel";
import { App } from "./lib/state/app.svelte";
import { Shelf } from "./lib/state/shelf";
import { Vault } from "./lib/state/vault";

const target = document.querySelector("#app");
if (target === null) throw new Error("the page has no #app");

const app = new App(createChannel(), new Shelf(await Vault.open()));
app.settings.apply();
mount(Root, { target, props: { app } });
void app.start().catch((error: unknown) => app.report(error));

if (import.meta.env.PROD) void app.offline.keep();
// A notification was clicked.
navigator.serviceWorker?.addEventListener("message", ({ data }) => {
  if (typeof data?.fragment === "string") location.hash = data.fragment;
});
