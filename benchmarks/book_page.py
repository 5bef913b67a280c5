"""Shows the sections of benchmarks/book: as text, and as one HTML page that needs no other files."""
from html import escape

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}th,td{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}pre{background:#f5f5f5;padding:.6rem;overflow:auto;font-size:13px}svg{max-width:100%}
@media(prefers-color-scheme:dark){body{background:#1b1b1b;color:#ddd}th,td{border-color:#444}pre{background:#2a2a2a}}"""
COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#b9770e", "#7d3c98", "#707b7c")


def text(section):
    """A Markdown table and its notes."""
    lines = [f"\n## {section['title']}\n", "| " + " | ".join(section["columns"]) + " |", "|" + "---|" * len(section["columns"])]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in section["rows"]]
    return "\n".join([*lines, "", *section["notes"]])


def page(about, sections):
    body = "".join(section_html(section) for section in sections)
    return (f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>The book's tables</title>"
            f"<style>{STYLE}</style><h1>The book's tables</h1><p>{escape(about)}</p>{body}</html>\n")


def section_html(section):
    head = "".join(f"<th>{escape(name)}" for name in section["columns"])
    rows = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in row) for row in section["rows"])
    notes = "".join(f"<pre>{escape(note)}</pre>" if "\n" in note else f"<p>{escape(note)}" for note in section["notes"])
    return f"<h2>{escape(section['title'])}</h2><table><tr>{head}{rows}</table>{chart(section['lines']) if 'lines' in section else ''}{notes}"


def chart(lines, width=640, height=320, margin=44):
    """`lines`: name -> [(replicas, per cent)]; the numbers of replicas are drawn in equal steps."""
    places = sorted({x for line in lines.values() for x, _ in line})
    values = [y for line in lines.values() for _, y in line]
    low, high = min(values) - 1, max(values) + 1

    def at(x, y):
        across = places.index(x) / max(1, len(places) - 1)
        return f"{margin + across * (width - 2 * margin):.1f},{height - margin - (y - low) / (high - low) * (height - 2 * margin):.1f}"

    parts = [f"<svg viewBox='0 0 {width} {height + 20 * len(lines)}' role=img aria-label='accuracy by replicas' font-size=13 fill=currentColor>"]
    for x in places:
        parts.append(f"<text x={at(x, low).split(',')[0]} y={height - margin + 20} text-anchor=middle>{x}</text>")
    for y in (low + 1, high - 1):
        parts.append(f"<text x=4 y={at(places[0], y).split(',')[1]}>{y:.1f}%</text>")
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f"<polyline fill=none stroke='{colour}' stroke-width=2 points='{' '.join(at(x, y) for x, y in line)}'/>")
        parts += [f"<circle cx={at(x, y).split(',')[0]} cy={at(x, y).split(',')[1]} r=3 fill='{colour}'/>" for x, y in line]
        parts.append(f"<text x={margin} y={height + 20 * number} fill='{colour}'>{escape(name)}</text>")
    return "".join(parts) + "</svg>"
