"""The kinds of problems that data can pose, by name: what is given, and what is to be predicted."""

from __future__ import annotations

CLASSIFICATION = "classification"
MULTI_LABEL = "multi-label-classification"
REGRESSION = "regression"
MULTIPLE_CHOICE = "multiple-choice"
TOKEN_CLASSIFICATION = "token-classification"
CANDIDATES = "candidates"
GENERATION = "generation"
QUESTION_ANSWERING = "question-answering"

OF_TEXTS = (CLASSIFICATION, MULTI_LABEL, REGRESSION)  # whose answers are of a whole text, or pair of texts

PROBLEMS: dict[str, str] = {
    CLASSIFICATION: "one class per text, or per pair of texts",
    MULTI_LABEL: "any number of classes per text, or per pair of texts",
    REGRESSION: "one number per text, or per pair of texts",
    MULTIPLE_CHOICE: "one of the choices that each question brings along",
    TOKEN_CLASSIFICATION: "one tag per word",
    CANDIDATES: "one of the candidate answers to a question about several documents",
    GENERATION: "a text",
    QUESTION_ANSWERING: "the part of a context that answers a question, or that there is none",
}
