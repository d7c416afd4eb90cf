"""The check-up as one HTML file that needs nothing else: verdicts, curves with what was found marked on them, causes, fixes."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.diagnosis.causes.cause import Fix
from holdfast.diagnosis.checkup import Checkup, Episode
from holdfast.diagnosis.curve_sentences import sentence
from holdfast.diagnosis.of_run import check_up_run
from holdfast.diagnosis.plot import Mark, plot, plot_scripts
from holdfast.diagnosis.ranking import Ranked
from holdfast.signals.curves import Curve, Curves
from holdfast.signals.run_folder import RunFolder

_VERDICTS = {"healthy": "healthy", "watch": "worth a look", "ill": "something is wrong", "too-short": "too short to tell"}
_STYLE = """
:root { color-scheme: light dark; --ink: #1a202c; --soft: #718096; --line: #e2e8f0; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --soft: #a0aec0; --line: #2d3748; --paper: #1a202c; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin: 1.4rem 0 .2rem; }
.verdict { font-weight: 600; padding: .1rem .6rem; border-radius: 1rem; color: #fff; font-size: .85rem; }
.healthy { background: #2f855a; } .watch { background: #b7791f; } .ill { background: #c53030; }
.too-short { background: #4a5568; }
.soft { color: var(--soft); } code { font-size: .9em; } ul { margin: .2rem 0 .6rem; padding-left: 1.2rem; }
"""


def page(checkups: Sequence[Checkup]) -> str:
    """The whole file."""
    title = checkups[0].curves.name if len(checkups) == 1 else f"{len(checkups)} runs"
    body = "\n".join(_section(checkup) for checkup in checkups)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{_text(title)}</title>'
    whole = f"<head>{head}<style>{_STYLE}</style>{plot_scripts()}</head><body><h1>Holdfast: {_text(title)}</h1>{body}</body>"
    return f"<!doctype html><html lang=en>{whole}</html>\n"


def frame(run: RunFolder) -> str:
    """The page of a run in a frame, as a notebook shows it: its style touches nothing else there."""
    checkup = check_up_run(run, compare=False)
    height = 160 + 330 * len(_groups(checkup.curves)) + 120 * len(checkup.episodes)
    inner = html.escape(page([checkup]), quote=True)
    return f'<iframe srcdoc="{inner}" style="width: 100%; height: {min(height, 900)}px; border: 0"></iframe>'


def _section(checkup: Checkup) -> str:
    curves = checkup.curves
    verdict = f'<span class="verdict {checkup.verdict}">{_VERDICTS[checkup.verdict]}</span>'
    head = f"<h2>{_text(curves.name)} {verdict}</h2><p class=soft>{_text(curves.source)} · {curves.steps:,} steps</p>"
    marks = [
        Mark(finding.onset, str(number), finding.severity)
        for number, episode in enumerate(checkup.episodes, 1)
        for finding in episode.findings[:1]
    ]
    marks += [Mark(change.step, change.words, "change") for change in checkup.changes]
    plots = "".join(plot(group, marks, title=title) for title, group in _groups(curves).items())
    return head + plots + "".join(_episode(number, episode, curves) for number, episode in enumerate(checkup.episodes, 1))


def _groups(curves: Curves) -> dict[str, list[Curve]]:
    """What is drawn together, by the title of its axis."""
    losses = [curve for curve in (curves.train_loss, curves.val_loss) if curve is not None]
    rates, norms = curves.of("lr")[:1], curves.of("norm")[:1]
    groups = {"loss": losses, "metric": curves.metrics[:3], "learning rate": rates, "gradient norm": norms}
    return {title: group for title, group in groups.items() if group}


def _episode(number: int, episode: Episode, curves: Curves) -> str:
    items = "".join(
        f"<li><code>{_text(finding.code)}</code> {_text(sentence(finding, curves))}</li>" for finding in episode.findings
    )
    causes = "".join(_cause(ranked) for ranked in episode.diagnoses[:3])
    return f"<h3>{number}. {_text(episode.findings[0].code)}</h3><ul>{items}</ul>{causes}"


def _cause(ranked: Ranked) -> str:
    because = "; ".join((ranked.cause.because.rstrip("."), *ranked.because))
    fixes = "".join(f"<li>{_text(fix.words)}{_setting(fix)}</li>" for fix in ranked.fixes)
    return (
        f"<p><b>{_text(ranked.cause.title)}</b> <span class=soft>({ranked.stated})</span>: {_text(because)}</p><ul>{fixes}</ul>"
    )


def _setting(fix: Fix) -> str:
    return f" <code>{_text(fix.change)}</code>" if fix.change else ""


def _text(words: str) -> str:
    return html.escape(words, quote=True)


if __name__ == "__main__":
    os.nice(10)  # somebody trains beside
    print(frame(RunFolder.open(Path(sys.argv[1]))))
