"""Rates as a picture for the documentation."""

from xml.sax.saxutils import escape

BAR, GAP, LEFT, WIDTH = 22, 10, 230, 420


def bar_chart(title, bars):
    """An SVG of horizontal bars, readable on light and on dark ground; [(name, value, is ours)]."""
    most = max(value for _, value, _ in bars)
    height = 50 + len(bars) * (BAR + GAP)
    size = f'viewBox="0 0 {LEFT + WIDTH + 90} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" fill="#7a7f87"',
        '    font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<text x="0" y="20" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for number, (name, value, is_ours) in enumerate(bars):
        top = 40 + number * (BAR + GAP)
        wide = max(2, round(WIDTH * value / most))
        color = "#2f8f5b" if is_ours else "#8a94a3"
        lines += [
            f'<text x="{LEFT - 8}" y="{top + 16}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{wide}" height="{BAR}" rx="3" fill="{color}"/>',
            f'<text x="{LEFT + wide + 8}" y="{top + 16}">{value:,.0f}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
