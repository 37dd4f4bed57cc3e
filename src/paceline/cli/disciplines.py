"""`paceline disciplines`: the table of all rows and orders, or everything about one."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from paceline.errors import ConfigError

_LEAST = 160  # columns, where the output is no terminal


def disciplines(
    name: Annotated[
        str | None, typer.Argument(help="A discipline or an order to explain; default: the table of all.")
    ] = None,
    order: Annotated[str | None, typer.Option(help="Explain the discipline under this order.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Say how requests can be scheduled: all disciplines and orders, or one of them with its knobs."""
    from paceline.core import describe
    from paceline.core.disciplines import ALIASES, DISCIPLINES, discipline
    from paceline.core.orders import ORDERS

    if name is None:
        found: Any = {"disciplines": describe.table(), "orders": describe.orders()}
        show = _show_table
    elif name in ORDERS:
        if order is not None:
            raise ConfigError("--order", order, f"left out: {name} is an order itself")
        found, show = describe.explain_order(name), _show_order
    else:
        if name not in DISCIPLINES and name not in ALIASES:
            known = f"a discipline or an order: one of {', '.join([*DISCIPLINES, *ALIASES])}; {', '.join(ORDERS)}"
            raise ConfigError("NAME", name, known)
        found = describe.explain(discipline(name, order))
        show = _show_row
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    return 0


def _console() -> Any:
    from paceline.bench import terminal

    return terminal.console(_LEAST, markup=False, emoji=False)


def _show_table(found: dict[str, Any]) -> None:
    from paceline.bench.terminal import WholeTable
    from paceline.core.describe import POINTS

    console = _console()
    titles = ("name", *(point.replace("_", " ") for point in POINTS), "after")
    table = WholeTable(*titles, words=range(1, len(titles)))
    for row in found["disciplines"]:
        table.add_row(row["name"], *(row[point] for point in POINTS), row["after"])
    console.print(table)
    console.print("\nOrders: any discipline takes another with --order NAME\n")
    orders = WholeTable("name", "who is next", "how long one may wait", words=(1, 2))
    for row in found["orders"]:
        orders.add_row(row["name"], row["words"], row["bound"])
    console.print(orders)
    console.print("\n'paceline disciplines NAME' explains a discipline or an order, with its knobs.")


def _show_order(order: dict[str, Any]) -> None:
    console = _console()
    console.print(f"{order['name']}: an order; any discipline takes it with --order {order['name']}\n")
    console.print(f"who is next? {order['words']}\n")
    console.print(f"how long may one wait? {order['bound']}\n")
    if order["of"]:
        console.print(f"the order of: {', '.join(order['of'])}\n")
    console.print("knobs, with their defaults" if order["knobs"] else "it has no knobs")
    for knob, value in order["knobs"].items():
        console.print(f"    --knob {knob}={json.dumps(value)}  ({order['allowed'][knob]})")


def _show_row(row: dict[str, Any]) -> None:
    from rich.padding import Padding

    console = _console()

    def indented(text: str, by: int = 4) -> None:
        console.print(Padding(text, (0, 0, 0, by), expand=False))

    known_as = f", also {', '.join(row['aliases'])}" if row["aliases"] else ""
    console.print(f"{row['name']}{known_as}: after {row['after']}\n")
    for point, choice in row["choices"].items():
        console.print(f"{point.replace('_', ' ')}: {choice['question']} {choice['name']}")
        indented(choice["words"])
        if "bound" in choice:
            indented(f"bound: {choice['bound']}")
        for knob, value in choice["knobs"].items():
            indented(f"--knob {knob}={json.dumps(value)}  ({choice['allowed'][knob]})")
        console.print()
    console.print(f"prefix cache: {row['cache']}\n")
    console.print("settings, unless given otherwise")
    for name, value in row["settings"].items():
        fixed = row["fixed"].get(name)
        indented(f"{name} = {json.dumps(value)}" + (f"  (always: {fixed['why']})" if fixed else ""))
    if row["empty_steps"]:
        console.print(f"\na step may be empty {row['empty_steps']}")
    if row["failure_modes"]:
        console.print("\nknown to go wrong")
        for mode in row["failure_modes"]:
            indented("- " + mode)
