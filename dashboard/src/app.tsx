// The frame around the screens: navigation, the token, the theme.
import { useEffect, useRef, useState } from "preact/hooks";
import { getToken, onToken, refused, setToken } from "./api";
import { useGet } from "./poll";
import { href, useRoute } from "./route";
import { Causality } from "./screens/causality";
import { Connections } from "./screens/connections";
import { DeadLetters } from "./screens/dead-letters";
import { Events } from "./screens/events";
import { Groups } from "./screens/groups";
import { Overview } from "./screens/overview";
import { Topics } from "./screens/topics";
import type { Hub } from "./types";
import { Field } from "./ui/parts";
import { Theme } from "./ui/theme";

const SCREENS = { overview: "Overview", topics: "Topics", events: "Events", groups: "Groups", "dead-letters": "Dead letters", connections: "Connections", causality: "Causality" };

export function App() {
  const { screen, query } = useRoute();
  const [, redraw] = useState(0);
  useEffect(() => onToken(() => redraw((n) => n + 1)), []);
  const { data: hub, error } = useGet<Hub>("hub", {}, 5_000);
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  // A new screen: its heading gets the focus, so that a screen reader says where we are.
  useEffect(() => {
    document.title = `${SCREENS[screen as keyof typeof SCREENS] ?? "Not found"} · Promethean`;
    if (!first.current) main.current?.querySelector("h1")?.focus({ preventScroll: true });
    first.current = false;
    scrollTo(0, 0);
  }, [screen, query.topic, query.group]);
  if (refused) return <Gate wrong={getToken() !== undefined ? refused.message : undefined} />;
  const page = {
    overview: () => <Overview hub={hub} />,
    topics: () => <Topics key={query.topic} query={query} />,
    events: () => <Events query={query} hub={hub} />,
    groups: () => <Groups query={query} hub={hub} />,
    "dead-letters": () => <DeadLetters query={query} hub={hub} />,
    connections: () => <Connections key={query.id} query={query} />,
    causality: () => <Causality query={query} hub={hub} />,
  }[screen];
  const lost = error && error.status === 0;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to content</a>
      <header class="top">
        <a class="brand" href={href("overview")}><img src="./favicon.svg" alt="" width="22" height="22" />Promethean</a>
        <nav aria-label="Screens">
          {Object.entries(SCREENS).map(([name, title]) => <a key={name} href={href(name)} aria-current={name === screen ? "page" : undefined}>{title}</a>)}
        </nav>
        <div class="row tools">
          <span class={`link-state ${lost ? "bad" : hub ? "good" : ""}`} role="status">{lost ? "hub unreachable" : hub ? hub.sub ?? "connected" : "connecting"}</span>
          <Theme />
          {getToken() !== undefined && <button type="button" onClick={() => setToken(undefined)}>Sign out</button>}
        </div>
      </header>
      <main ref={main} id="main" tabIndex={-1}>{page ? page() : <p class="empty">There is no such screen. <a href={href("overview")}>Overview</a></p>}</main>
    </>
  );
}

function Gate({ wrong }: { wrong: string | undefined }) {
  const [token, set] = useState("");
  return (
    <main class="gate">
      <form class="panel" onSubmit={(event) => { event.preventDefault(); setToken(token.trim()); }}>
        <h1><img src="./favicon.svg" alt="" width="28" height="28" /> Promethean</h1>
        <p class="muted">This hub asks for a token: the static one, or a JWT. It is kept for this tab only.</p>
        <Field label="Token"><input type="password" required autocomplete="off" spellcheck={false} value={token} onInput={(e) => set(e.currentTarget.value)} /></Field>
        {wrong && <p class="problem" role="alert">{wrong}</p>}
        <div class="row end"><button type="submit" class="primary">Sign in</button></div>
      </form>
    </main>
  );
}
