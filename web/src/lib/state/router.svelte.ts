/** The page that is open, in step with the address bar. */

import { formatRoute, parseRoute, type Route } from "../model/route";

export class Router {
  route = $state.raw<Route>(parseRoute(location.hash));

  constructor() {
    addEventListener("hashchange", () => {
      this.route = parseRoute(location.hash);
    });
  }

  go(route: Route): void {
    location.hash = formatRoute(route);
  }

  /** Changes the address without a step in the history. */
  replace(route: Route): void {
    history.replaceState(null, "", formatRoute(route));
    this.route = route;
  }
}
