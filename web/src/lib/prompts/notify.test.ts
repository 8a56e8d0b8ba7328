// @vitest-environment jsdom
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { Prompt } from "../model/prompts";
import { notify } from "./notify";

let shown: unknown[];
let ids = 0;

/** What was not asked before. */
const ask = (): Prompt => ({ type: "ask", id: (ids += 1), session: 7, questions: [], at: "" });

class FakeNotification extends EventTarget {
  static permission = "granted";
  constructor(title: string, { tag }: NotificationOptions) {
    super();
    shown.push(["page", title, tag]);
  }
  close(): void {}
}

function serviceWorker(registration: unknown): void {
  const getRegistration = () => Promise.resolve(registration);
  vi.stubGlobal("navigator", { serviceWorker: { getRegistration } });
}

beforeEach(() => {
  shown = [];
  FakeNotification.permission = "granted";
  vi.stubGlobal("Notification", FakeNotification);
  vi.spyOn(document, "hidden", "get").mockReturnValue(true);
});

afterEach(() => vi.unstubAllGlobals());

it("goes by the service worker where there is one: Android knows no other way", async () => {
  const showNotification = (title: string, { tag, data }: NotificationOptions) =>
    shown.push(["worker", title, tag, data]);
  serviceWorker({ active: {}, showNotification });
  notify(ask(), true, 1);
  const tag = `ask-${ids}`;
  await vi.waitFor(() =>
    expect(shown).toEqual([["worker", "A question for you", tag, { fragment: "#/s/7" }]]),
  );
});

it("goes by the page where there is none", async () => {
  for (const registration of [undefined, { active: null }]) {
    shown = [];
    serviceWorker(registration);
    notify(ask(), true, 1);
    await vi.waitFor(() => expect(shown).toEqual([["page", "A question for you", `ask-${ids}`]]));
  }
  shown = [];
  vi.stubGlobal("navigator", {});
  notify(ask(), true, 1);
  await vi.waitFor(() => expect(shown).toHaveLength(1));
});

it("is silent when it is not wanted, not allowed, or in front", async () => {
  const getRegistration = vi.fn();
  vi.stubGlobal("navigator", { serviceWorker: { getRegistration } });
  notify(ask(), false, 1);
  FakeNotification.permission = "denied";
  notify(ask(), true, 1);
  FakeNotification.permission = "granted";
  vi.spyOn(document, "hidden", "get").mockReturnValue(false);
  notify(ask(), true, 1);
  expect(getRegistration).not.toHaveBeenCalled();
  expect(shown).toEqual([]);
});
