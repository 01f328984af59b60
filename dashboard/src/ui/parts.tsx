// Small pieces that several screens share.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "../api";

export function Stat({ label, value, note, tone, link }: { label: string; value: string; note?: string; tone?: "bad" | "warn" | undefined; link?: string }) {
  const body = <><span class="label">{label}</span><strong>{value}</strong><span class="note">{note ?? " "}</span></>;
  return link ? <a class={`stat panel ${tone ?? ""}`} href={link}>{body}</a> : <div class={`stat panel ${tone ?? ""}`}>{body}</div>;
}

export const Pill = ({ tone, children }: { tone: "good" | "warn" | "bad" | "calm"; children: ComponentChildren }) => <span class={`pill ${tone}`}>{children}</span>;

export function Problem({ error }: { error: ApiError | Error | undefined }) {
  if (!error) return null;
  return <p class="problem" role="alert">{error.message}</p>;
}

export function Head({ title, note, children }: { title: string; note?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <header class="head">
      <div><h1 tabIndex={-1}>{title}</h1>{note && <p class="muted">{note}</p>}</div>
      <div class="row">{children}</div>
    </header>
  );
}

export function Field({ label, children }: { label: string; children: ComponentChildren }) {
  return <label class="field"><span>{label}</span>{children}</label>;
}

/** Copies, and says that it did. */
export function Copy({ text, children }: { text: () => string; children: ComponentChildren }) {
  const [done, setDone] = useState("");
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      setDone("Copied");
    } catch {
      setDone(fallback(text()) ? "Copied" : "Not allowed");
    }
    timer.current = setTimeout(() => setDone(""), 1_500);
  };
  return <button type="button" onClick={copy} aria-live="polite">{done || children}</button>;
}

/** The clipboard interface needs a secure context; a hub in the local network has none. */
function fallback(text: string): boolean {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

/** A modal dialog: the browser's own, so that focus, Escape and the backdrop work. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => { box.current!.showModal(); }, []);
  return (
    <dialog ref={box} aria-label={title} onClose={onClose} onClick={(event) => { if (event.target === box.current) box.current!.close(); }}>
      <div class="dialog">
        <div class="row spread"><h2>{title}</h2><button type="button" class="icon" aria-label="Close" onClick={() => box.current!.close()}>✕</button></div>
        {children}
      </div>
    </dialog>
  );
}

export function download(name: string, type: string, data: BlobPart): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
