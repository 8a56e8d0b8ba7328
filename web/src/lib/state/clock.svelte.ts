/** The time, for what counts on the screen. It ticks only while somebody looks. */

import { createSubscriber } from "svelte/reactivity";

class Clock {
  #subscribe = createSubscriber((update) => {
    const timer = setInterval(() => {
      if (!document.hidden) update();
    }, 1000);
    return () => clearInterval(timer);
  });

  get now(): number {
    this.#subscribe();
    return Date.now();
  }
}

export const clock = new Clock();
