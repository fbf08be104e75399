"""Turns answers that no rule knows into integers with a language model, and checks them.

The check is independent: the model solves the extended problem without seeing the original
answer, and enough of its solutions must give the integer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rllib_dapo.cli.transform.model_prompts import HEADINGS, check_prompt, transformation_prompt
from rllib_dapo.cli.transform.question import RefusalError, Transformed
from rllib_dapo.cli.transform.text_engine import TextEngine
from rllib_dapo.errors import SettingError
from rllib_dapo.rewards.grading.extract import clean
from rllib_dapo.rewards.grading.grade import grade_robust, parse_gold
from rllib_dapo.rewards.grading.literals import TooLargeError, parse_number
from rllib_dapo.rollout.engine.base import Sampling

NO_OUTPUT = "model: problem too long"
REFUSED = "model: refused"
MALFORMED = "model: steps missing"
NOT_AN_INTEGER = "model: no integer"
LEAKED = "model: answer given away"
DISAGREED = "model: check failed"
_MAX_QUESTION = 1_000


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How the model is asked.

    Attributes:
        samples: how often the model tries the four steps; the first well-formed output counts.
        check_samples: how often the model solves the extended problem; 0 skips the check.
        check_agreement: how many of these solutions must give the integer.
        temperature: sampling temperature of both passes; 0 is greedy.
        top_p: the probability mass to sample from, in both passes.
        max_tokens: the longest output, in tokens.
    """

    samples: int = 2
    check_samples: int = 4
    check_agreement: int = 2
    temperature: float = 0.7
    top_p: float = 0.95
    max_tokens: int = 2048

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SettingError(f"samples={self.samples}: use 1 or more", "samples")
        if self.check_samples < 0:
            raise SettingError(
                f"check_samples={self.check_samples}: use 0 or more", "check_samples"
            )
        if self.check_samples and not 1 <= self.check_agreement <= self.check_samples:
            raise SettingError(
                f"check_agreement={self.check_agreement}: use 1 to check_samples="
                f"{self.check_samples}",
                "check_agreement",
            )
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.max_tokens < 1:
            raise SettingError(
                f"temperature={self.temperature}, top_p={self.top_p}, max_tokens="
                f"{self.max_tokens}: use 0 or more, above 0 to 1, and 1 or more"
            )


def transform_by_model(
    engine: TextEngine, pairs: Sequence[tuple[str, str]], options: ModelOptions
) -> list[Transformed | RefusalError]:
    """Turn answers into integers.

    Args:
        engine: the model.
        pairs: the text of each problem with its answer.
        options: how the model is asked.

    Returns:
        For each pair the new problem and answer, or the reason why it was refused.
    """
    sampling = Sampling(options.temperature, options.top_p, options.max_tokens)
    prompts = [transformation_prompt(problem, answer) for problem, answer in pairs]
    outputs = engine.generate(prompts, options.samples, sampling)
    results = [_first(texts, answer) for texts, (_, answer) in zip(outputs, pairs, strict=True)]
    asked = [i for i, result in enumerate(results) if isinstance(result, Transformed)]
    if options.check_samples and asked:
        problems = [check_prompt(f"{pairs[i][0].rstrip()} {_question(results[i])}") for i in asked]
        solutions = engine.generate(problems, options.check_samples, sampling)
        for i, texts in zip(asked, solutions, strict=True):
            results[i] = _checked(results[i], texts, options)
    return results


def read_steps(text: str, answer: str) -> Transformed:
    """Read the four steps in a completion of the model.

    Args:
        text: the completion.
        answer: the original answer, which the added question must not contain.

    Raises:
        RefusalError: a step is missing, there is no integer, or the answer is given away.
    """
    text = text.rpartition("</think>")[2]
    if re.search(rf"(?m)^{HEADINGS[0]}\s*\n\s*REFUSE\b", text):
        raise RefusalError(REFUSED, "the model sees no form for this answer")
    pattern = r"\s*\n(.*?)".join(map(re.escape, HEADINGS)) + r"\s*\n(.*)\Z"
    match = re.search(pattern, text, re.DOTALL)
    if match is None or not all(section.strip() for section in match.groups()):
        raise RefusalError(MALFORMED, f"found {text[-60:]!r}")
    question = " ".join(match[2].split())
    if len(question) > _MAX_QUESTION:
        raise RefusalError(MALFORMED, f"an added question of {len(question)} characters")
    try:
        number = parse_number(clean(match[4].strip()))
    except TooLargeError as error:
        raise RefusalError(NOT_AN_INTEGER, str(error)) from error
    if number is None or number.unit is not None or number.value.denominator != 1:
        raise RefusalError(NOT_AN_INTEGER, f"found {match[4].strip()[:40]!r}")
    integer = int(number.value)
    _refuse_leaks(question, answer, integer)
    return Transformed("model", question, integer)


def _refuse_leaks(question: str, answer: str, integer: int) -> None:
    bare = "".join(answer.split()).strip("$")
    if len(bare) > 2 and bare in "".join(question.split()):
        raise RefusalError(LEAKED, f"the added question holds the answer {answer[:40]!r}")
    if abs(integer) > 9 and re.search(rf"(?<![0-9]){abs(integer)}(?![0-9])", question):
        raise RefusalError(LEAKED, f"the added question holds the integer {integer}")


def _first(texts: Sequence[str], answer: str) -> Transformed | RefusalError:
    """The first well-formed completion, or the reason why the last one is refused."""
    refusal = RefusalError(NO_OUTPUT, "prompt and output exceed the model's length")
    for text in texts:
        try:
            return read_steps(text, answer)
        except RefusalError as error:
            refusal = error
    return refusal


def _question(result: Transformed | RefusalError) -> str:
    return result.question if isinstance(result, Transformed) else ""


def _checked(
    result: Transformed | RefusalError, texts: Sequence[str], options: ModelOptions
) -> Transformed | RefusalError:
    if not isinstance(result, Transformed):
        return result
    gold = parse_gold(result.answer)
    agreeing = sum(grade_robust(text, gold).correct for text in texts)
    if agreeing >= options.check_agreement:
        return result
    return RefusalError(
        DISAGREED,
        f"{agreeing} of {len(texts)} solutions give {result.answer}, {options.check_agreement}"
        f" are needed; the question was: {result.question}",
    )
