"""*Cost*: time and bytes of every party."""

from __future__ import annotations

from cipherbayes.report.charts import bar_row
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import NONE, duration, size
from cipherbayes.report.run_contents import Contents

PARTIES = {"csp": "CSP", "server": "Server", "all": "Whoever holds the tables"}
"""What parties that are no sites are called."""


def cost_section(contents: Contents) -> Markup:
    """The whole section."""
    timing, traffic = contents.record["timing"], contents.record["bytes"]
    rounds = max(contents.all_rounds, 1)
    wall, total = timing["wall_s"], traffic["total"]
    costs = _of_each(contents)
    most = max((seconds for _, seconds, _ in costs), default=0.0)
    rows: list[list[Content]] = [
        [
            PARTIES.get(name, name),
            bar_row([(100.0 * seconds / most if most else 0.0, "private")]),
            duration(seconds),
            duration(seconds / rounds),
            size(sent) if sent else NONE,
            size(sent / rounds) if sent else NONE,
        ]
        for name, seconds, sent in costs
    ]
    text = f"{rounds:,} rounds in {duration(wall)}, start to end."
    if total:
        text += f" All messages of all rounds together are {size(total)}."
    if not rows:
        return tag("p", text)
    return join(
        tag("p", text),
        table(
            "Processor time of each party, and what it sent",
            [
                "Party",
                tag("span", "chart", class_="unseen"),
                "Time",
                "A round",
                "Sent",
                "Sent a round",
            ],
            rows,
            words=(1,),
            class_="costs",
            id_="costs",
        ),
    )


def _of_each(contents: Contents) -> list[tuple[str, float, int]]:
    """Name, seconds and bytes of each party, sites first."""
    record = contents.record
    parties = record.get("parties", [])
    if not parties:
        # No parties, or a result that was written before they were kept.
        timing = record["timing"]
        known = {
            "all": timing["site_s"],
            "server": timing["server_s"],
            "csp": timing["csp_s"],
        }
        return [(name, seconds, 0) for name, seconds in known.items() if seconds]
    order = sorted(parties, key=lambda party: party["name"] in PARTIES)
    return [(party["name"], party["seconds"], party["bytes"]) for party in order]
