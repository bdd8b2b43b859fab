"""What pacing does, on the simulator and on a real model: makes the tables and pictures of docs/pacing.md.

python benchmarks/pacing.py [--part virtual|real|all] [--seeds 5] [--repeats 3] [--out docs] [--runs FOLDER]

The virtual part takes about three minutes on two cores; the real one an hour and a half, on a machine that does
nothing else. A real run that is in --runs already is not made again: remove the folder to begin anew.
Tables replace what stands between the markers `<!-- NAME -->` and `<!-- /NAME -->` of the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import pacing_real, pacing_virtual  # noqa: E402 - the folder is no package of the product


def put(page: Path, name: str, text: str) -> None:
    """Replace a marked part of the page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    if not begin or not end:
        raise SystemExit(f"{page} has no part {name}")
    page.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")


def virtual(out: Path, seeds: int) -> None:
    """Tables and a picture from the simulator."""
    started = time.monotonic()
    results = pacing_virtual.run_all(seeds)
    verdicts = {cell: pacing_virtual.not_worse(results, cell) for cell in dict.fromkeys(cell for cell, _ in results)}
    worse = [
        f"{cell.preset}, {cell.load}, {cell.rate:.3g}: {', '.join(found)}" for cell, found in verdicts.items() if found
    ]
    summary = (
        f"{len(verdicts)} cells, {seeds} seeds of {pacing_virtual.NUM_PROMPTS} requests each, "
        f"{time.monotonic() - started:.0f} s in all. "
        f"`paced` is worse beyond the spread of seeds in: {'; '.join(worse) or 'none'}."
    )
    print(summary)
    print(pacing_virtual.table(results))
    put(out / "pacing.md", "virtual", f"{summary}\n\n{pacing_virtual.table(results)}")
    pacing_virtual.draw(out / "images" / "pacing-virtual.svg", "gpu-70b-4", "mixed", begin=6.0, seconds=2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["virtual", "real", "all"], default="all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--runs", type=Path, default=ROOT / "build" / "pacing-runs", help="where real runs are kept")
    args = parser.parse_args()
    if args.part in ("virtual", "all"):
        virtual(args.out, args.seeds)
    if args.part in ("real", "all"):
        text = pacing_real.measure(args.out / "images" / "pacing-real.svg", args.repeats, args.runs)
        print(text)
        put(args.out / "pacing.md", "real", text)


if __name__ == "__main__":
    main()
