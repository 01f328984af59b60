// Where we are, in the address's fragment: `#/groups?topic=a.b&group=ops`. Links are plain links.
import { useEffect, useState } from "preact/hooks";

export interface Route {
  screen: string;
  query: Record<string, string>;
}

export function parse(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?");
  return { screen: path || "overview", query: Object.fromEntries(new URLSearchParams(search)) };
}

export function href(screen: string, query: Record<string, string | number | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== "") search.set(name, String(value));
  return `#/${screen}${search.size ? `?${search}` : ""}`;
}

export const go = (screen: string, query?: Record<string, string | undefined>): void => { location.hash = href(screen, query); };

/** Changes the address without a step in the history. */
export const amend = (screen: string, query: Record<string, string | undefined>): void => history.replaceState(null, "", href(screen, query));

export function useRoute(): Route {
  const [route, setRoute] = useState(parse(location.hash));
  useEffect(() => {
    const change = () => setRoute(parse(location.hash));
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return route;
}
