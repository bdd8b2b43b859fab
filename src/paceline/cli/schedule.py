"""`paceline schedule`: what the scheduler does with a scripted scenario. Needs no model and no torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline.simulate.scenario import Scenario, ScenarioReport, load_scenario, run_scenario

EPILOG = """\
A scenario is a YAML file: the number of stages, engine options by their own names, and requests with their lengths.

  stages: 2
  max_num_batched_tokens: 64
  requests:
    - {id: req_a, prompt_tokens: 6, output_tokens: 3}
    - {id: req_b, prompt_tokens: 5, output_tokens: 3, arrive_before_batch: 1}

docs/scheduling.md explains every key and reads two such tables line by line.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "schedule",
        help="show what the scheduler does with a scripted scenario (no model needed)",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.yaml", help="the scenario file")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    scenario = load_scenario(args.scenario)
    report = run_scenario(scenario)
    if args.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        print_table(scenario, report, Console(width=None if sys.stdout.isatty() else 110))
    return 0


def print_table(scenario: Scenario, report: ScenarioReport, console: Console) -> None:
    """One line per batch and one column per request: its tokens in the batch, or its status and why it is not in it."""
    if scenario.what:
        console.print(f"[bold]{escape(scenario.what)}[/bold]", highlight=False)
    stages = "1 stage" if scenario.stages == 1 else f"{scenario.stages} stages"
    loop_back = ", loop-back" if scenario.loop_back else ""
    console.print(
        f"{stages}, {scenario.max_num_batched_tokens} tokens a batch, pacing {scenario.pacing}{loop_back}",
        highlight=False,
    )
    table = Table()
    table.add_column("batch", justify="right")
    for request in scenario.requests:
        table.add_column(escape(request.id), overflow="fold")
    for batch in report.batches:
        cells = []
        for request in scenario.requests:
            if request.id in batch.slices:
                first, end = batch.slices[request.id]
                ahead = " ahead" if request.id in batch.ahead else ""
                cells.append(f"[bold green]\\[{first}:{end})[/bold green]{ahead}")
            elif request.id in batch.status:
                cells.append(f"{batch.status[request.id]}, [yellow]{batch.why_not[request.id]}[/yellow]")
            else:
                cells.append("")
        table.add_row(str(batch.batch), *cells)
    table.add_section()
    ends = []
    for request in scenario.requests:
        final = report.final[request.id]
        tokens = "1 token" if final.output_tokens == 1 else f"{final.output_tokens} tokens"
        ends.append(f"{final.status}, {tokens}")
    table.add_row("end", *ends)
    console.print(table)
    console.print(
        "[first:end) are the token positions that the batch computes; such a request is RUNNING.", markup=False
    )
    if scenario.loop_back:
        console.print("ahead: the token is still on its way; the last stage hands it to the first.", markup=False)
