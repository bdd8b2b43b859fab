"""What is painted on the monitor's lanes."""

from __future__ import annotations

from playwright.sync_api import Page

# Colours of the bars in each lane, from what is painted: 100 columns of the upper quarter, where no idle strip is.
PAINTED = """(stages) => {
  const canvas = document.querySelector("#lanes");
  const ratio = canvas.width / canvas.clientWidth;
  const context = canvas.getContext("2d");
  return Array.from({ length: stages }, (_, stage) => {
    const y = Math.round((24 + stage * 82 + 3) * ratio);
    const row = context.getImageData(0, y, canvas.width, 1).data;
    const found = new Set();
    for (let x = 0; x < canvas.width; x += 1) found.add(row.slice(4 * x, 4 * x + 3).join());
    return [...found];
  });
}"""


def picture(page: Page) -> str:
    """What the lanes look like, as a data address."""
    return str(page.evaluate("document.querySelector('#lanes').toDataURL()"))


def wait_until_painted_otherwise(page: Page, before: str) -> None:
    page.wait_for_function("(before) => document.querySelector('#lanes').toDataURL() !== before", arg=before)
