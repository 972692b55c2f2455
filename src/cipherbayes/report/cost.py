"""*Cost*: time and bytes of every party."""

from __future__ import annotations

from cipherbayes.report.charts import bar_row
from cipherbayes.report.contents import Contents
from cipherbayes.report.markup import Content, Markup, join, table, tag
from cipherbayes.report.numbers import NONE, duration, size

PARTIES = {
    "site_s": "Site (the slowest)",
    "server_s": "Server",
    "csp_s": "CSP",
}


def cost(contents: Contents) -> Markup:
    """The whole section."""
    record = contents.record
    timing, traffic = record["timing"], record["bytes"]
    rounds = max(contents.plan.rounds if contents.plan else record["rounds"], 1)
    wall = timing["wall_s"]
    rows: list[list[Content]] = []
    for key, name in PARTIES.items():
        seconds = timing.get(key, 0.0)
        if seconds == 0.0:
            continue
        sent = traffic["per_round_site"] if key == "site_s" else None
        rows.append(
            [
                name,
                bar_row([(100.0 * seconds / wall if wall else 0.0, "private")]),
                duration(seconds),
                duration(seconds / rounds),
                NONE if not sent else size(sent),
            ]
        )
    rows.append(
        [
            "Everything, start to end",
            bar_row([(100.0, "open")]),
            duration(wall),
            duration(wall / rounds),
            size(traffic["total"] / rounds) if traffic["total"] else NONE,
        ]
    )
    text = f"{rounds:,} rounds in {duration(wall)}."
    if traffic["total"]:
        text += (
            f" A site sends {size(traffic['per_round_site'])} a round; all messages of "
            f"all rounds together are {size(traffic['total'])}."
        )
    return join(
        tag("p", text),
        table(
            "Processor time of each party, and what it sends",
            [
                "Party",
                tag("span", "chart", class_="unseen"),
                "Time",
                "A round",
                "Sent a round",
            ],
            rows,
            words=(1,),
            class_="costs",
            id_="costs",
        ),
    )
