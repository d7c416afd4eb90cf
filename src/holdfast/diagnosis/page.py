"""The check-up as one HTML file that needs nothing else: verdicts, curves with what was found marked on them, causes, fixes."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.diagnosis.checkup import Checkup
from holdfast.diagnosis.curve_sentences import sentence
from holdfast.diagnosis.of_run import check_up_run
from holdfast.diagnosis.plot import Mark, plot, plot_scripts
from holdfast.drawing.pages import rendered
from holdfast.signals.curves import Curve, Curves
from holdfast.signals.run_folder import RunFolder

_VERDICTS = {"healthy": "healthy", "watch": "worth a look", "ill": "something is wrong", "too-short": "too short to tell"}
_TONES = {"healthy": "good", "watch": "warning", "ill": "critical", "too-short": "info"}


def page(checkups: Sequence[Checkup]) -> str:
    """The whole file."""
    from markupsafe import Markup

    return rendered(
        "checkup.html",
        title=checkups[0].curves.name if len(checkups) == 1 else f"{len(checkups)} runs",
        scripts=Markup(plot_scripts()),
        runs=[
            {"verdict": one.verdict, "curves": one.curves, "episodes": one.episodes, "plots": list(map(Markup, _plots(one)))}
            for one in checkups
        ],
        verdicts=_VERDICTS,
        tones=_TONES,
        sentence=sentence,
    )


def frame(run: RunFolder) -> str:
    """The page of a run in a frame, as a notebook shows it: its style touches nothing else there."""
    checkup = check_up_run(run, compare=False)
    height = 160 + 330 * len(_groups(checkup.curves)) + 120 * len(checkup.episodes)
    inner = html.escape(page([checkup]), quote=True)
    return f'<iframe srcdoc="{inner}" style="width: 100%; height: {min(height, 900)}px; border: 0"></iframe>'


def _plots(checkup: Checkup) -> list[str]:
    """The curves with the findings, by the numbers of the text, and the changes from outside marked on them."""
    marks = [
        Mark(finding.onset, str(number), finding.severity)
        for number, episode in enumerate(checkup.episodes, 1)
        for finding in episode.findings[:1]
    ]
    marks += [Mark(change.step, change.words, "change") for change in checkup.changes]
    return [plot(group, marks, title=title) for title, group in _groups(checkup.curves).items()]


def _groups(curves: Curves) -> dict[str, list[Curve]]:
    """What is drawn together, by the title of its axis."""
    losses = [curve for curve in (curves.train_loss, curves.val_loss) if curve is not None]
    rates, norms = curves.of("lr")[:1], curves.of("norm")[:1]
    groups = {"loss": losses, "metric": curves.metrics[:3], "learning rate": rates, "gradient norm": norms}
    return {title: group for title, group in groups.items() if group}


if __name__ == "__main__":
    os.nice(10)  # somebody trains beside
    print(frame(RunFolder.open(Path(sys.argv[1]))))
