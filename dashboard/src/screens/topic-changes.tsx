// Creating, deleting and purging a topic: each removal is tried first, and says what would go.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { send } from "../api";
import { bytes, count, many } from "../format";
import { href } from "../route";
import type { Gone } from "../types";
import { Dialog, Field, Problem } from "../ui/parts";

export function CreateDialog({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [error, setError] = useState<Error>();
  const create = async () => {
    try {
      await send("PUT", "topics", { topic: name.trim() }, {});
      location.hash = href("topics", { topic: name.trim() });
      onClose();
    } catch (cause) { setError(cause as Error); }
  };
  return (
    <Dialog title="Create a topic" onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); void create(); }}>
        <Field label="Name"><input required value={name} spellcheck={false} placeholder="orders.created" onInput={(e) => setName(e.currentTarget.value)} /></Field>
        <Problem error={error} />
        <div class="row end"><button type="submit" class="primary">Create</button></div>
      </form>
    </Dialog>
  );
}

/** Asks for a plan first; only a plan of what is on the form can be carried out. */
function Removal({ title, verb, children, ask, onClose, done }: {
  title: string; verb: string; children: (change: () => void) => ComponentChildren;
  ask: (dryRun: boolean) => Promise<Gone>; onClose: () => void; done?: () => void;
}) {
  const [plan, setPlan] = useState<Gone>();
  const [error, setError] = useState<Error>();
  const run = async (dryRun: boolean) => {
    setError(undefined);
    try {
      setPlan(await ask(dryRun));
      if (!dryRun) done?.();
    } catch (cause) { setError(cause as Error); }
  };
  const gone = plan && !plan.dryRun;
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); void run(true); }}>
        {children(() => setPlan(undefined))}
        <Problem error={error} />
        {plan && (
          <p class="plan" role="status">
            {gone ? "Removed" : "Would remove"} {many(plan.events, "event")} ({bytes(plan.bytes)})
            {plan.groups !== undefined && <>, the positions of {many(plan.groups, "group")}</>}
            {plan.dlq && <>, {count(plan.dlq.events)} dead letters</>}.
          </p>
        )}
        <div class="row end">
          <button type="submit">Try (changes nothing)</button>
          {gone ? <button type="button" class="primary" onClick={onClose}>Done</button> : <button type="button" class="primary" disabled={!plan} onClick={() => void run(false)}>{verb}</button>}
        </div>
      </form>
    </Dialog>
  );
}

export function DeleteDialog({ topic, onClose }: { topic: string; onClose: () => void }) {
  const [dlq, setDlq] = useState(false);
  const ask = (dryRun: boolean) => send<Gone>("DELETE", "topics", { topic, dlq: dlq ? 1 : undefined, dryRun: dryRun ? 1 : undefined });
  const leave = () => { location.hash = href("topics"); };
  return (
    <Removal title={`Delete ${topic}`} verb="Delete" ask={ask} onClose={onClose} done={leave}>
      {(change) => (
        <>
          <p>Its events, its settings and the positions of its groups go. Its subscribers end. A topic of this name that is created later continues above the last seq.</p>
          <label><input type="checkbox" checked={dlq} onChange={(e) => { setDlq(e.currentTarget.checked); change(); }} /> its dead letters too</label>
        </>
      )}
    </Removal>
  );
}

export function PurgeDialog({ topic, onClose }: { topic: string; onClose: () => void }) {
  const [by, setBy] = useState("beforeTs");
  const [value, setValue] = useState("");
  const body = () => ({ [by]: by === "keys" ? value.split(",").map((key) => key.trim()).filter(Boolean) : by === "beforeTs" ? new Date(value).getTime() : Number(value) });
  const ask = (dryRun: boolean) => send<Gone>("POST", "purge", { topic, dryRun: dryRun ? 1 : undefined }, body());
  return (
    <Removal title={`Purge ${topic}`} verb="Purge" ask={ask} onClose={onClose}>
      {(change) => (
        <>
          <Field label="Events"><select value={by} onChange={(e) => { setBy(e.currentTarget.value); setValue(""); change(); }}>
            <option value="beforeTs">before a time</option><option value="beforeSeq">before a seq</option><option value="keys">of some keys</option>
          </select></Field>
          <Field label={by === "keys" ? "Keys, with commas between them" : by === "beforeTs" ? "Time" : "Seq"}>
            <input required type={by === "keys" ? "text" : by === "beforeTs" ? "datetime-local" : "number"} step="1" value={value} onInput={(e) => { setValue(e.currentTarget.value); change(); }} />
          </Field>
        </>
      )}
    </Removal>
  );
}
