// Where the events of a causality graph go: causes left, effects right. Pure.
import type { Event } from "./types";

export interface Spot { event: Event; layer: number; row: number }
export interface Layout { spots: Spot[]; edges: [from: Spot, to: Spot][]; layers: number; rows: number }

/** A layer per step from the first causes; within a layer, near the mean row of the causes. Survives cycles. */
export function layout(events: Event[]): Layout {
  const byId = new Map(events.map((event) => [event.id, event]));
  const causes = (event: Event) => (event.caused_by ?? []).filter((id) => byId.has(id) && id !== event.id);
  const layerOf = new Map<string, number>();
  const visit = (id: string, path: Set<string>): number => {
    const known = layerOf.get(id);
    if (known !== undefined) return known;
    if (path.has(id)) return 0;
    path.add(id);
    const layer = Math.max(-1, ...causes(byId.get(id)!).map((cause) => visit(cause, path))) + 1;
    path.delete(id);
    layerOf.set(id, layer);
    return layer;
  };
  for (const { id } of events) visit(id, new Set());
  const layers: Event[][] = [];
  for (const event of events) (layers[layerOf.get(event.id)!] ??= []).push(event);
  const spots = new Map<string, Spot>();
  layers.forEach((list, layer) => {
    const mean = (event: Event) => {
      const rows = causes(event).map((id) => spots.get(id)?.row ?? 0);
      return rows.length ? rows.reduce((a, b) => a + b, 0) / rows.length : 0;
    };
    [...list].sort((a, b) => mean(a) - mean(b) || a.ts - b.ts).forEach((event, row) => spots.set(event.id, { event, layer, row }));
  });
  const all = [...spots.values()];
  const edges = all.flatMap((to) => causes(to.event).map((id): [Spot, Spot] => [spots.get(id)!, to]));
  return { spots: all, edges, layers: layers.length, rows: Math.max(0, ...layers.map((list) => list.length)) };
}
