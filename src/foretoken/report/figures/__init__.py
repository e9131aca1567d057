"""The figures of a report: one table, and how a figure gets into a page (:func:`to_svg`) or a file (:func:`to_png`).

Every figure takes the finished runs, and answers None where they have nothing for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from foretoken.report.figures.against import score_by_length, score_by_parameters, time_by_length
from foretoken.report.figures.attention import attention_mass, selective_curves, selective_gates
from foretoken.report.figures.calibration import coverage_risk, reliability
from foretoken.report.figures.epochs import calibration_error, learning_curves, learning_seconds
from foretoken.report.figures.hyperparameters import loss_by_option, score_by_option
from foretoken.report.figures.lengths import document_lengths
from foretoken.report.figures.scores import violins
from foretoken.report.figures.search import expected_performance
from foretoken.report.figures.style import NARROW, Drawing
from foretoken.report.figures.svg import to_png, to_svg

__all__ = ["FIGURES", "LEADING", "NARROW", "Figure", "to_png", "to_svg"]


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes:
        title: its heading.
        caption: what is drawn, and how to read it.
        draw: finished runs -> the figure, in a `width` (such as `NARROW`, for a phone); None where these runs have
            nothing for it.
    """

    title: str
    caption: str
    draw: Drawing


LEADING = ("parameters", "scores")  # the first of these that can be drawn stands at the top of a report
_CHOSEN = "Of several candidates of a method, the one that is best by validation is drawn."

FIGURES: dict[str, Figure] = {
    "scores": Figure(
        "Scores over seeds",
        f"Each point is one seed. With three different scores or more, a violin shows their distribution. {_CHOSEN}",
        violins,
    ),
    "parameters": Figure(
        "Score against trained parameters",
        "Mean over seeds; the bar is its 95 % interval (Student's t), and a point without one is a single seed. "
        f"A bar that leaves the panel is longer. Parameters, the head's included, on a logarithmic axis. {_CHOSEN}",
        score_by_parameters,
    ),
    "prefix_length": Figure(
        "Score against prefix length",
        "Mean over seeds, with the standard deviation as a bar. At every length, the candidate that is best by "
        "validation; where some candidate was not measured on the test split, all are compared on validation.",
        score_by_length,
    ),
    "step_time": Figure(
        "Time per step against prefix length",
        "Median time of a training step; mean over the runs, with the standard deviation as a bar. Times of runs on "
        "different machines cannot be compared.",
        time_by_length,
    ),
    "options": Figure(
        "Validation score against the options of a method",
        "Every candidate, tested or not, at its value of each option that candidates of its method differ in; the line "
        "goes through the best candidate of each value by validation, with one standard deviation over seeds.",
        score_by_option,
    ),
    "options_loss": Figure(
        "Training loss against the options of a method",
        "The last training loss of every candidate, tested or not; the line goes through the best candidate of each "
        "value by validation, with one standard deviation over seeds.",
        loss_by_option,
    ),
    "learning_curves": Figure(
        "Learning curves",
        "Training loss, and the task's metric on validation, after every evaluation: mean over seeds, with one "
        f"standard deviation around it. Later steps have only the seeds that came so far. {_CHOSEN}",
        learning_curves,
    ),
    "learning_seconds": Figure(
        "Learning curves over time",
        "The task's metric on validation over the seconds that training had taken, evaluations not counted: mean over "
        "seeds, with one standard deviation around it. Times of runs on different machines cannot be compared. "
        f"{_CHOSEN}",
        learning_seconds,
    ),
    "ece_per_epoch": Figure(
        "Calibration error per epoch",
        "Expected calibration error on validation after every evaluation: mean over seeds, with one standard "
        f"deviation around it; lower is better. {_CHOSEN}",
        calibration_error,
    ),
    "reliability": Figure(
        "Reliability diagrams",
        "Accuracy of the predictions in each bin of confidence; points are at the mean confidence. A calibrated model "
        "lies on the dotted diagonal; below it, it is too sure of itself. The strip above shows how many predictions "
        "each bin holds. Test split (validation where the test was not looked at), all seeds together.",
        reliability,
    ),
    "coverage_risk": Figure(
        "Risk and coverage",
        "Share of errors if the model answers only where it is most confident, for every share of documents that it "
        "answers; mean over seeds. Lower is better.",
        coverage_risk,
    ),
    "validation_performance": Figure(
        "Expected validation performance",
        "The best validation score that a search of so many hyperparameter assignments may be expected to find "
        "(Dodge et al. 2019), for methods with two or more. An assignment counts once, with the mean of its seeds; the "
        "band is from the lowest to the highest curve of a single seed.",
        expected_performance,
    ),
    "document_lengths": Figure(
        "Lengths of the documents",
        "Tokens per document of each data set's largest split, on a logarithmic axis, from the shortest to the "
        "longest. The point is the median; the line is where the model's input ends.",
        document_lengths,
    ),
    "attention_mass": Figure(
        "Attention on the prefix",
        "Mean share of its attention that a token of the text gives to the prefix, per layer and head, as measured "
        "with foretoken analyse.",
        attention_mass,
    ),
    "selective_gates": Figure(
        "Mask of selective prefix tuning",
        "Mean of the mask m(s) over tokens and prefix, per layer and head: 0 hides the prefix, 1 shows it as it is.",
        selective_gates,
    ),
    "selective_curves": Figure(
        "Selective mask on the scores",
        "Weight m(s) exp(s) of a prefix token with score s in the softmax, beside exp(s), its weight without the mask "
        "(figure 5 of Zhang et al. 2024). Behind the curves: how often the trained adapter's scores occur.",
        selective_curves,
    ),
}
