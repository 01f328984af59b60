// A time chart: uPlot, in the page's colours, with words for those who do not see it.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "preact/hooks";
import type { Column } from "../types";

export interface Line { label: string; values: Column | undefined; color: string; fill?: boolean }
interface Props { title: string; t: number[]; lines: Line[]; format: (n: number) => string }

const color = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
/** Fifteen minutes; while there are fewer samples, what there is, but not less than a minute. */
const [LEAST, MOST] = [60, 900];
const HEIGHT = 150;

export function Chart({ title, t, lines, format }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const span = useRef(LEAST);
  const labels = lines.map((line) => line.label).join();

  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      plot.current = new uPlot({
        width: box.current!.clientWidth || 300, height: HEIGHT,
        padding: [10, 16, 0, 0],
        legend: { show: false },
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false }, sync: { key: "promethean" } },
        scales: { x: { time: true }, y: { range: (_u, _min, max) => [0, Math.max(1, (max ?? 0) * 1.15)] } },
        axes: [
          { ...axis, space: 70, size: 26, values: (_u, ticks) => ticks.map((s) => new Date(s * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(span.current < 300 && { second: "2-digit" }) })) },
          { ...axis, size: 58, space: 36, values: (_u, ticks) => ticks.map(format) },
        ],
        series: [{}, ...lines.map((line) => ({
          label: line.label, stroke: color(line.color), width: 1.5, points: { show: false }, spanGaps: false,
          ...(line.fill && { fill: `${color(line.color)}22` }),
        }))],
      }, [[], ...lines.map(() => [])] as unknown as uPlot.AlignedData, box.current!);
      draw();
    };
    make();
    const size = new ResizeObserver(() => plot.current?.setSize({ width: box.current!.clientWidth, height: HEIGHT }));
    size.observe(box.current!);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    const theme = new MutationObserver(make);
    theme.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      size.disconnect();
      theme.disconnect();
      dark.removeEventListener("change", make);
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [labels]);

  const latest = useRef({ t, lines });
  latest.current = { t, lines };
  function draw() {
    const { t, lines } = latest.current;
    const end = (t.at(-1) ?? Date.now()) / 1000;
    plot.current?.setData([t.map((ms) => ms / 1000), ...lines.map((line) => line.values ?? t.map(() => null))] as uPlot.AlignedData, false);
    span.current = Math.min(MOST, Math.max(LEAST, t.length));
    plot.current?.setScale("x", { min: end - span.current, max: end });
  }
  useEffect(draw, [t, lines]);

  const last = (line: Line) => [...(line.values ?? [])].reverse().find((v) => v !== null);
  const words = lines.map((line) => `${line.label} ${format(last(line) ?? 0)}`).join(", ");
  return (
    <figure class="chart panel">
      <figcaption>
        <h3>{title}</h3>
        <ul class="legend" aria-hidden="true">
          {lines.map((line) => <li key={line.label}><i class={`dot ${line.color}`} />{line.label} <b>{last(line) === undefined ? "–" : format(last(line)!)}</b></li>)}
        </ul>
      </figcaption>
      <div ref={box} role="img" aria-label={`${title}, last 15 minutes. Now: ${words}.`} />
    </figure>
  );
}
