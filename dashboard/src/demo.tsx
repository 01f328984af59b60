// The seed's page: a live table of `process.state`, from a snapshot on, through the SDK.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { PromClient, type State } from "@promethean/client";
import { url } from "./api";
import { ago, duration } from "./format";
import { useNow } from "./poll";
import "./style.css";
import { Pill } from "./ui/parts";
import { Table } from "./ui/table";
import { Theme } from "./ui/theme";

interface ProcessState { processId: string; name: string; host: string; pid: number; cpu_pct: number; mem_mb: number; last_seen_ts: number; status: "alive" | "stale" }
interface Topics { "process.state": ProcessState | null }

function Demo() {
  const [rows, setRows] = useState<ProcessState[]>([]);
  const [state, setState] = useState<State>("idle");
  const [events, setEvents] = useState(0);
  const [error, setError] = useState("");
  const now = useNow(500);
  useEffect(() => {
    const address = url("ws");
    address.protocol = address.protocol.replace("http", "ws");
    const client = new PromClient<Topics>(address, { onState: setState });
    const known = new Map<string, ProcessState>();
    let seen = 0;
    let timer: ReturnType<typeof setTimeout> | undefined;
    client.subscribe("process.state", null, ({ key = "", payload }) => {
      seen++;
      if (payload === null) known.delete(key);
      else known.set(key, payload);
      timer ??= setTimeout(() => { timer = undefined; setEvents(seen); setRows([...known.values()]); }, 100);
    }, { from: "snapshot" }).catch((cause) => setError(cause.message));
    return () => void client.close({ timeoutMs: 0 });
  }, []);
  const alive = rows.filter((row) => row.status === "alive").length;
  return (
    <main class="demo">
      <header class="head">
        <div><h1>Processes</h1><p class="muted" role="status">{alive} alive, {rows.length - alive} stale · {events} events · {state}</p></div>
        <div class="row"><Theme /><a class="button" href="./">Dashboard</a></div>
      </header>
      {error && <p class="problem" role="alert">{error}</p>}
      <section class="panel">
        <Table label="Processes" rows={rows} id={(x) => x.processId} sort={["Process"]} empty="Waiting for heartbeats…" cols={[
          { title: "Process", by: (x) => x.name, cell: (x) => <b>{x.name}</b> },
          { title: "Host", by: (x) => x.host, cell: (x) => x.host },
          { title: "Pid", num: true, by: (x) => x.pid, cell: (x) => x.pid },
          { title: "CPU", num: true, by: (x) => x.cpu_pct, cell: (x) => <span class="countdown"><span>{x.cpu_pct.toFixed(1)} %</span><meter min={0} max={100} high={80} value={x.cpu_pct} aria-label="CPU" /></span> },
          { title: "Memory", num: true, by: (x) => x.mem_mb, cell: (x) => `${Math.round(x.mem_mb)} MB` },
          { title: "Status", by: (x) => x.status, cell: (x) => <Pill tone={x.status === "alive" ? "good" : "warn"}>{x.status}</Pill> },
          { title: "Last seen", num: true, by: (x) => -x.last_seen_ts, cell: (x) => (now - x.last_seen_ts < 1_000 ? ago(x.last_seen_ts, now) : `${duration(now - x.last_seen_ts)} ago`) },
        ]} />
      </section>
      <p class="muted small">The whole page is one <code>subscribe("process.state", null, …, {"{"} from: "snapshot" {"}"})</code> of <a href="./sdk.js">sdk.js</a>.</p>
    </main>
  );
}

render(<Demo />, document.getElementById("app")!);
